import { useParams } from "wouter";
import { RunsList } from "./list";
import { RunPage } from "./run";
import "./runs.css";

export default function RunsScreen() {
  const { id } = useParams<{ id?: string }>();
  return id === undefined ? <RunsList /> : <RunPage key={id} id={decodeURIComponent(id)} />;
}
