import { Empty, ScreenHeader } from "../../components";

export default function OperationsScreen() {
  return (
    <>
      <ScreenHeader title="Operations" />
      <Empty icon="operations" title="Nothing here yet">
        <p>This screen is being built.</p>
      </Empty>
    </>
  );
}
