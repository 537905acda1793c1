package web

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10

	// shutdownTimeout bounds the wait for running requests; Cloud Run leaves 10 s after SIGTERM for
	// everything.
	shutdownTimeout = 2 * time.Second
)

// Serve serves a handler on ln, which it closes, until ctx ends. Then it lets running requests
// finish, ends the rest after two seconds, and returns nil. Any other return is an error, which
// names what is served.
func (g *Gate) Serve(ctx context.Context, what string, ln net.Listener, handler http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           g.handler(handler),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // clients that hang up, mostly
		ConnState:         g.state,
		ConnContext:       remember,
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(gatedListener{ln, g}) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve %s: %w", what, err)
	case <-ctx.Done():
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		_ = srv.Close() // for clients that do not read their answers
	}

	<-ended

	return nil
}
