/** A table whose rows open in a sheet beside it. Which one is open is in the address. */
import type { ReactNode } from "react";
import { ErrorNotice, Loading } from "./basics";
import { Dialog } from "./dialog";
import { Table, type Column } from "./table";
import { useUrlState } from "./url";

export function SheetTable<Row>(props: {
  /** The parameter of the address that has the id of the open row. */
  parameter: string;
  label: string;
  columns: Column<Row>[];
  /** Undefined while they are loading. */
  rows: Row[] | undefined;
  rowId: (row: Row) => string;
  /** What is opened may be one that a filter leaves out of the rows. */
  find: (id: string) => Row | undefined;
  error: unknown;
  onRetry: () => void;
  /** Called when the end is near: load the next page. */
  onEnd?: () => void;
  empty: ReactNode;
  title: (row: Row) => string;
  children: (row: Row) => ReactNode;
}) {
  const { parameter, rows, rowId } = props;
  const [params, setParams] = useUrlState();
  if (props.error !== null)
    return (
      <div className="pad">
        <ErrorNotice error={props.error} onRetry={props.onRetry} />
      </div>
    );
  if (rows === undefined) return <Loading />;
  const id = params.get(parameter);
  const opened = id === null ? undefined : props.find(id);
  return (
    <>
      <Table
        label={props.label}
        columns={props.columns}
        rows={rows}
        rowId={rowId}
        selected={id ?? undefined}
        onOpen={(row) => setParams({ [parameter]: rowId(row) })}
        onEnd={props.onEnd}
        empty={props.empty}
      />
      <Dialog
        open={opened !== undefined}
        look="sheet"
        onClose={() => setParams({ [parameter]: null })}
        title={opened === undefined ? props.label : props.title(opened)}
      >
        {opened !== undefined && props.children(opened)}
      </Dialog>
    </>
  );
}
