import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

/** The width of an element, now and after every change of the window. */
export function useWidth<T extends Element>(): [{ current: T | null }, number] {
  const ref = useRef<T>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return undefined;
    const measure = () => setWidth(Math.floor(element.getBoundingClientRect().width));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/** Calls `tick` every `milliseconds` while `running`. */
export function useTicks(running: boolean, milliseconds: number, tick: () => void): void {
  const latest = useRef(tick);
  latest.current = tick;
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => latest.current(), milliseconds);
    return () => clearInterval(timer);
  }, [running, milliseconds]);
}
