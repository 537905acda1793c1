package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLimitSeverity(t *testing.T) {
	t.Parallel()
	l := Limit{Behind: 30 * time.Second, Critical: 2 * time.Minute}
	for age, want := range map[time.Duration]Severity{
		0: "", 29 * time.Second: "", 30 * time.Second: Warning, 119 * time.Second: Warning, 2 * time.Minute: Critical,
		time.Hour: Critical,
	} {
		require.Equal(t, want, l.Of(Age(age)), age)
	}

	require.Equal(t, Warning, Limit{Behind: time.Second}.Of(Age(time.Hour)), "without a second limit nothing is critical")
	require.Empty(t, Limit{}.Of(Age(time.Hour)))
}
