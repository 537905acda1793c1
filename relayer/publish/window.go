package publish

import "github.com/fusion-prime/escrow-relayer/relayer/outbox"

// window is the messages that this process is responsible for: those in memory, waiting or in flight,
// and acknowledged ones that are not noted yet. Only these can be repeated by a crash, and each
// enters once: an event of the log in places, a row of the outbox in ids.
//
// A reading of the outbox shows what was there when it began. So a row deleted during a reading
// stays in the window until the reading has been handled: deletedDuringRead holds such rows, and is
// empty while reading is false. bytes is the size of the rows in memory.
type window struct {
	limits            *limits
	log               *places
	ids               map[outbox.ID]struct{}
	bytes             int
	reading           bool
	deletedDuringRead []outbox.ID
}

func newWindow(l *limits, log *places) window {
	return window{limits: l, log: log, ids: map[outbox.ID]struct{}{}}
}

func (w *window) has(id outbox.ID) bool {
	_, ok := w.ids[id]
	return ok
}

// room is how many more rows fit.
func (w *window) room() int {
	if w.bytes >= w.limits.windowBytes {
		return 0
	}

	return max(0, w.limits.windowRows-len(w.ids)-w.log.entries)
}

// enter adds a row outside memory: it counts no bytes.
func (w *window) enter(id outbox.ID) { w.ids[id] = struct{}{} }

// load adds a row in memory.
func (w *window) load(r *row) {
	if !r.logged() {
		w.enter(r.ID)
	}

	w.bytes += r.size()
}

// unload frees the memory of rows; they stay in the window.
func (w *window) unload(rows []row) {
	for i := range rows {
		w.bytes -= rows[i].size()
	}
}

// deleted forgets a row that was deleted from the outbox.
func (w *window) deleted(id outbox.ID) {
	if w.reading {
		w.deletedDuringRead = append(w.deletedDuringRead, id)
		return
	}

	delete(w.ids, id)
}

// beginReading and endReading are called around each reading.
func (w *window) beginReading() { w.reading = true }

func (w *window) endReading() {
	for _, id := range w.deletedDuringRead {
		delete(w.ids, id)
	}

	w.reading, w.deletedDuringRead = false, nil
}
