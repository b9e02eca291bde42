import { Empty, ScreenHeader } from "../../components";

export default function RunsScreen() {
  return (
    <>
      <ScreenHeader title="Runs" />
      <Empty icon="runs" title="Nothing here yet">
        <p>This screen is being built.</p>
      </Empty>
    </>
  );
}
