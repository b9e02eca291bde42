import { Empty, ScreenHeader } from "../../components";

export default function InboxScreen() {
  return (
    <>
      <ScreenHeader title="Inbox" />
      <Empty icon="inbox" title="Nothing here yet">
        <p>This screen is being built.</p>
      </Empty>
    </>
  );
}
