package endpoint

import "time"

// RangesInFlight hides a provider's latency; more would only meet its rate limit.
const RangesInFlight = 4

const (
	// mostInFlight is more than are usually asked at a time: four by each watch and the verifier, and looks.
	mostInFlight = 16
	// A refusal speaks against the number in flight unless so many were answered at that number.
	enoughAnswers = 4
	// firstTrial is after how long one more is tried again, twice as long each time that it fails.
	firstTrial = 10 * time.Second
)

// width is how many batches a node is asked for at a time: any number until one was refused while others
// were in flight, then as many as were answered so before, and one more now and then. Of ranges it is
// one until one was answered, and one more with each answer. Held: the allowance's mu.
type width struct {
	most     int // in flight
	inFlight int
	answers  [mostInFlight + 1]int // by how many were in flight when they were asked
	narrowed time.Time
	failures int       // of trials of one more
	trial    time.Time // when one more may be tried
	ranges   int       // asked for
	calm     int       // ranges answered in a row
}

func newWidth() width { return width{most: mostInFlight} }

func (w *width) full() bool { return w.inFlight >= w.most }

func (w *width) start() int {
	w.inFlight++
	return w.inFlight
}

func (w *width) end() int {
	w.inFlight--
	return w.inFlight + 1
}

// enter reports whether one more range may be asked for now.
func (w *width) enter() bool {
	if w.ranges >= min(1+w.calm, RangesInFlight, w.most) {
		return false
	}

	w.ranges++

	return true
}

// answered notes an answer to what was asked as the crowd-th at a time. Once as many as are allowed
// have been answered often enough, one more may be tried.
func (w *width) answered(crowd int, now time.Time) {
	w.answers[min(crowd, mostInFlight)]++
	if w.most < mostInFlight && now.After(w.trial) && w.proven(w.most) {
		w.most++
	}
}

// proven reports whether enough has been answered at such a number.
func (w *width) proven(crowd int) bool {
	if crowd = min(crowd, mostInFlight); crowd <= 1 {
		return true
	}

	n := 0
	for _, answers := range w.answers[crowd:] {
		n += answers
	}

	return n >= enoughAnswers
}

// refused notes a refusal, and reports whether that was for the number in flight.
func (w *width) refused(crowd int, now time.Time) bool {
	if crowd = min(crowd, mostInFlight); crowd <= 1 {
		return false
	}

	proven := w.proven(crowd)
	for n := crowd; n <= mostInFlight; n++ { // next time it has to be proven anew
		w.answers[crowd-1] += w.answers[n] // they prove one less all the same
		w.answers[n] = 0
	}

	if proven {
		return false
	}

	for w.most = crowd - 1; !w.proven(w.most); {
		w.most--
	}

	w.narrowed, w.trial = now, now.Add(min(firstTrial<<min(w.failures, 10), rememberedFor))
	w.failures++

	return true
}
