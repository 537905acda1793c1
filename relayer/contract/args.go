package contract

import "github.com/fusion-prime/escrow-relayer/relayer/message/members"

// EachText calls each for every argument of the event whose value is a string (an address, an integer,
// bytes or a text), in their order. It copies nothing: the value of an address, an integer or bytes has
// no escapes, and a text is passed with its escapes as they are.
func (e *Event) EachText(each func(name, value []byte)) {
	_ = members.Each(e.Args, func(name, value []byte) { // Decode wrote an object
		if value[0] == '"' {
			each(name, value[1:len(value)-1])
		}
	})
}
