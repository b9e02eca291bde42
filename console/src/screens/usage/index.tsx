import { Empty, ScreenHeader } from "../../components";

export default function UsageScreen() {
  return (
    <>
      <ScreenHeader title="Usage" />
      <Empty icon="usage" title="Nothing here yet">
        <p>This screen is being built.</p>
      </Empty>
    </>
  );
}
