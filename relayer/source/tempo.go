package source

import "time"

const (
	// marksKept bounds over how many blocks the pace is averaged, and marksNeeded is how many are too few.
	marksKept, marksNeeded = 64, 4
	// confident is how many looks in a row have to find a block before the next are put earlier more boldly.
	confident = 32
)

// tempo learns when blocks arrive at a node that does not announce them, so that it is asked just after and seldom before. The block's own time
// does not tell: it is in whole seconds, and says nothing of the way from its maker to the node. So each look that finds a block puts the next a little
// earlier within the block's interval, and one that comes too early puts it later.
type tempo struct {
	marks  []mark // looks that found a new block
	early  time.Duration
	streak int // looks in a row that found one
	misses int // looks since the last one that did
	due    time.Time
	steps  uint64  // blocks that are expected to be new then
	saved  float64 // requests below what is allowed
}

type mark struct {
	number uint64
	at     time.Time
}

// mean is the time between two blocks; zero: not known yet.
func (t *tempo) mean() time.Duration {
	if len(t.marks) < marksNeeded {
		return 0
	}
	first, last := t.marks[0], t.marks[len(t.marks)-1]
	return last.at.Sub(first.at) / time.Duration(last.number-first.number)
}

// found notes that a look at that time found a block. every is the pause that was configured.
func (t *tempo) found(n uint64, at time.Time, every time.Duration) {
	blocks := uint64(1)
	if k := len(t.marks); k > 0 {
		last := t.marks[k-1]
		if n <= last.number { // the chain was reorganised, or goes back
			t.marks, blocks = t.marks[:0], 1
		} else if blocks = n - last.number; t.mean() > 0 && at.Sub(last.at) > 4*t.mean()*time.Duration(blocks) {
			t.marks = t.marks[:0] // it stood still; that is no pace
		}
	}
	if len(t.marks) == marksKept {
		t.marks = append(t.marks[:0], t.marks[1:]...)
	}
	t.marks = append(t.marks, mark{n, at})
	mean := t.mean()
	t.steps = 1
	if mean <= 0 {
		t.misses, t.due = 0, at.Add(every)
		return
	}
	if mean > 2*every { // it is not known better than that when a block comes, and looks are cheap beside it
		t.misses, t.due = 0, at.Add(mean-every/2)
		return
	}
	if t.early == 0 {
		t.early = mean / 8
	}
	shift := -t.early
	if t.misses > 0 {
		shift = mean / 64
		t.early, t.streak = max(t.early/4, mean/1024), 0
	} else if t.streak++; t.streak%confident == 0 {
		t.early = min(2*t.early, mean/8)
	}
	t.misses = 0
	t.steps = uint64(max(1, (every+mean/2)/mean))
	t.due = at.Add(time.Duration(t.steps)*mean + shift)
}

// missed notes that a look at that time found nothing new.
func (t *tempo) missed(at time.Time, every time.Duration) {
	t.misses++
	pause := every
	if mean := t.mean(); mean > 2*every {
		pause = min(every/4<<min(t.misses/4, 10), every)
	} else if mean > 0 {
		pause = min(max(mean/32, 10*time.Millisecond)<<min(t.misses-1, 10), every)
	}
	t.due = at.Add(pause)
}

// spend keeps the looks within what a block may cost: so many requests were made, and so many blocks found. Where blocks come about as
// fast as the looks, one look is put off by a block when too much was spent: two blocks whose logs come with one look are cheaper.
func (t *tempo) spend(requests, blocks uint64, every time.Duration) {
	mean := t.mean()
	if mean == 0 {
		return // what the start costs is not the head's
	}
	t.saved = min(max(t.saved+itemsPerBlock*float64(blocks)-float64(requests), -8), 2)
	if t.saved < 0 && mean <= every*5/4 {
		t.due = t.due.Add(mean)
		t.steps++
	}
}

// itemsPerBlock is what a block may cost at the head on average: two, less a little for what the verifier reads later.
const itemsPerBlock = 1.95
