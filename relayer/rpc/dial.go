package rpc

import (
	"net"
	"time"
)

const (
	// unacknowledged is how long the other side's kernel may leave what was sent unconfirmed before a
	// connection counts as broken.
	unacknowledged = 10 * time.Second
	connectTimeout = 10 * time.Second
)

// dialer opens connections that end by themselves when packets vanish: probes when they are idle,
// and a bound on what is unconfirmed when they are not.
func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control:         limitUnacknowledged,
	}
}
