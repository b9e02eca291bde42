import { Empty, ScreenHeader } from "../../components";

export default function KeysScreen() {
  return (
    <>
      <ScreenHeader title="Keys" />
      <Empty icon="key" title="Nothing here yet">
        <p>This screen is being built.</p>
      </Empty>
    </>
  );
}
