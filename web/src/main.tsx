import { render } from "preact";
import "./app.css";
import { Explore } from "./Explore";
import { Report } from "./Page";
import type { View } from "./types";

const root = document.getElementById("root")!;
const data = document.getElementById("view");
render(data ? <Report view={JSON.parse(data.textContent!) as View} /> : <Explore />, root);
