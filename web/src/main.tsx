import { render } from "preact";
import "./app.css";
import { Report } from "./Page";
import type { View } from "./types";

const root = document.getElementById("root")!;
const data = document.getElementById("view");
if (data) render(<Report view={JSON.parse(data.textContent!) as View} />, root);
