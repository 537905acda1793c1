package testpubsub

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// New starts a server that ends with the test, with these topics of a project.
func New(t testing.TB, o Options, project string, topics ...string) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	for _, topic := range topics {
		s.CreateTopic(project, topic)
	}

	return s
}
