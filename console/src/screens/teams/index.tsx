import { Empty, ScreenHeader } from "../../components";

export default function TeamsScreen() {
  return (
    <>
      <ScreenHeader title="Teams" />
      <Empty icon="team" title="Nothing here yet">
        <p>This screen is being built.</p>
      </Empty>
    </>
  );
}
