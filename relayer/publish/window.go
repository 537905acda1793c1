package publish

import "github.com/fusion-prime/escrow-relayer/relayer/outbox"

// window is the rows that this process answers for: those in memory, waiting or under way, and
// those that are acknowledged and whose rows are not deleted yet. A crash can repeat no others, and
// none of them is taken in a second time.
//
// A reading of the outbox sees what was there when it began. So while one is under way, a row that
// is deleted stays in the window until the reading has been taken in: deletedDuringRead holds such
// rows, and is empty while reading is false. bytes is the size of the rows in memory.
type window struct {
	limits            *limits
	ids               map[outbox.ID]struct{}
	bytes             int
	reading           bool
	deletedDuringRead []outbox.ID
}

func newWindow(l *limits) window { return window{limits: l, ids: map[outbox.ID]struct{}{}} }

func (w *window) has(id outbox.ID) bool {
	_, ok := w.ids[id]
	return ok
}

// room is how many rows more fit.
func (w *window) room() int {
	if w.bytes >= w.limits.windowBytes {
		return 0
	}

	return max(0, w.limits.windowRows-len(w.ids))
}

// enter adds a row that is not in memory: bytes is 0.
func (w *window) enter(id outbox.ID) { w.ids[id] = struct{}{} }

// load adds a row that is in memory.
func (w *window) load(r *row) {
	w.enter(r.ID)
	w.bytes += r.size()
}

// unload frees the memory of rows; they stay in the window.
func (w *window) unload(rows []row) {
	for i := range rows {
		w.bytes -= rows[i].size()
	}
}

// leave forgets rows that stay in the outbox, and are to be read again.
func (w *window) leave(rows []row) {
	for i := range rows {
		delete(w.ids, rows[i].ID)
	}
}

// deleted forgets a row that is not in the outbox any more.
func (w *window) deleted(id outbox.ID) {
	if w.reading {
		w.deletedDuringRead = append(w.deletedDuringRead, id)
		return
	}

	delete(w.ids, id)
}

// beginReading and endReading are called around a reading of the outbox.
func (w *window) beginReading() { w.reading = true }

func (w *window) endReading() {
	for _, id := range w.deletedDuringRead {
		delete(w.ids, id)
	}

	w.reading, w.deletedDuringRead = false, nil
}
