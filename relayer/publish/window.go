package publish

// window is the rows that this process answers for: those in memory, waiting or under way, and
// those that are acknowledged and whose rows are not deleted yet. A crash can repeat no others, and
// none of them is taken in a second time.
//
// A reading of the outbox sees what was there when it began. So while one is under way, a row that
// is deleted stays in the window until the reading has been taken in: deletedDuringRead holds such
// rows, and is empty while reading is false. bytes is the size of the rows in memory.
type window struct {
	limits            *limits
	seqs              map[int64]struct{}
	bytes             int
	reading           bool
	deletedDuringRead []int64
}

func newWindow(l *limits) window { return window{limits: l, seqs: map[int64]struct{}{}} }

func (w *window) has(seq int64) bool {
	_, ok := w.seqs[seq]
	return ok
}

// room is how many rows more fit.
func (w *window) room() int {
	if w.bytes >= w.limits.windowBytes {
		return 0
	}

	return max(0, w.limits.windowRows-len(w.seqs))
}

// enter takes a row in that is not in memory: bytes is 0.
func (w *window) enter(seq int64) { w.seqs[seq] = struct{}{} }

// load takes rows in that are in memory.
func (w *window) load(r *row) {
	w.enter(r.Seq)
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
		delete(w.seqs, rows[i].Seq)
	}
}

// deleted forgets a row that is not in the outbox any more.
func (w *window) deleted(seq int64) {
	if w.reading {
		w.deletedDuringRead = append(w.deletedDuringRead, seq)
		return
	}

	delete(w.seqs, seq)
}

// beginReading and endReading are called around a reading of the outbox.
func (w *window) beginReading() { w.reading = true }

func (w *window) endReading() {
	for _, seq := range w.deletedDuringRead {
		delete(w.seqs, seq)
	}

	w.reading, w.deletedDuringRead = false, nil
}
