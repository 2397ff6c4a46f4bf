import { render } from "preact";
import "./app.css";
import { Explore } from "./Explore";
import { Report } from "./Page";
import { Measurements } from "./Measurements";
import type { Accuracy, View } from "./types";

const root = document.getElementById("root")!;
const data = document.getElementById("view");
const view = data && (JSON.parse(data.textContent!) as View | Accuracy);
if (!view) render(<Explore />, root);
else render(view.format === "meshwright-view" ? <Report view={view} /> : <Measurements view={view} />, root);
