import { Empty, ScreenHeader } from "../../components";

export default function SystemScreen() {
  return (
    <>
      <ScreenHeader title="System" />
      <Empty icon="system" title="Nothing here yet">
        <p>This screen is being built.</p>
      </Empty>
    </>
  );
}
