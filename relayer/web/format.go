package web

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// count formats a number with separated thousands: heights are compared by eye.
func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if n < 0 {
		sign, digits = "−", digits[1:]
	}

	for end := len(digits) - 3; end > 0; end -= 3 {
		digits = digits[:end] + "," + digits[end:]
	}

	return sign + digits
}

// known is count, with a dash for 0, an unknown height.
func known(n int64) string {
	if n == 0 {
		return "–"
	}

	return count(n)
}

// span writes a duration for people.
func span(d time.Duration) string { return fleet.Age(max(d, 0)).String() }

func milliseconds(a fleet.Age) string { return fmt.Sprintf("%.0f ms", 1000*a.Seconds()) }

// short keeps enough of a hash or an address to recognise it; other texts stay whole.
func short(hex string) string {
	const head, tail = 8, 6 // 0x and six digits; six digits
	if len(hex) <= head+tail+1 || !strings.HasPrefix(hex, "0x") {
		return hex
	}

	return hex[:head] + "…" + hex[len(hex)-tail:]
}

// ether writes wei as a decimal of 10^18, without trailing zeros.
func ether(wei string) string {
	const decimals = 18
	if strings.Trim(wei, "0123456789") != "" || wei == "" {
		return wei
	}

	wei = strings.TrimLeft(wei, "0")
	if len(wei) <= decimals {
		wei = strings.Repeat("0", decimals-len(wei)+1) + wei
	}

	whole, fraction := wei[:len(wei)-decimals], strings.TrimRight(wei[len(wei)-decimals:], "0")
	if fraction == "" {
		return whole
	}

	return whole + "." + fraction
}

// unix formats a time in unix seconds, as the contracts have it; other text stays unchanged.
func unix(seconds string) string {
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || n > 1<<40 {
		return seconds
	}

	return stamp(time.Unix(n, 0))
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" }

func clock(t time.Time) string { return t.UTC().Format("15:04:05") }

// plural puts a noun into the number of its count.
func plural[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}

	return count(n) + " " + many
}

// sentence capitalizes a text.
func sentence(s string) string {
	if s == "" {
		return s
	}

	return strings.ToUpper(s[:1]) + s[1:]
}
