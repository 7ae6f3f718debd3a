package entryplan_test

import (
	"math"
	"testing"
	"time"

	"github.com/sidecarset/operator/internal/entryplan"
)

func TestBarrierPathsAreReadBack(t *testing.T) {
	for _, configuration := range []string{"sidecarset-pods-0", "sidecarset-pods-15", "x"} {
		for _, serial := range []int64{0, 1, 1700000000000, math.MaxInt64} {
			path := entryplan.BarrierPath(configuration, serial)
			if name, got, ok := entryplan.ParseBarrierPath(path); !ok || name != configuration || got != serial {
				t.Errorf("%s is read as %q, %d, %v", path, name, got, ok)
			}
		}
	}
}

func TestOtherPathsAreNoBarriers(t *testing.T) {
	tests := map[string]string{
		"nothing":                  "",
		"the path of Pods":         entryplan.PathPods,
		"the prefix alone":         "/barrier/",
		"no slash in front":        "barrier/a/1",
		"no serial":                "/barrier/a",
		"an empty serial":          "/barrier/a/",
		"no configuration":         "/barrier//1",
		"a negative serial":        "/barrier/a/-1",
		"a sign":                   "/barrier/a/+1",
		"a zero in front":          "/barrier/a/01",
		"no number":                "/barrier/a/one",
		"something after it":       "/barrier/a/1/",
		"a part in between":        "/barrier/a/b/1",
		"more than a number holds": "/barrier/a/9223372036854775808",
	}
	for name, path := range tests {
		t.Run(name, func(t *testing.T) {
			if configuration, serial, ok := entryplan.ParseBarrierPath(path); ok || configuration != "" || serial != 0 {
				t.Errorf("%q is read as %q, %d, %v", path, configuration, serial, ok)
			}
		})
	}
}

func TestOnlyClocksThatAgreeAreTrusted(t *testing.T) {
	const trust = entryplan.Trust
	tests := map[string]struct {
		monotonic, wall time.Duration
		want            bool
	}{
		"a moment ago":                             {0, 0, true},
		"just in time":                             {trust, trust, true},
		"too long ago":                             {trust + 1, trust + 1, false},
		"too long ago by the wall clock":           {trust, trust + time.Millisecond, false},
		"clocks drift":                             {10 * time.Second, 10*time.Second + 400*time.Millisecond, true},
		"the wall clock was set forward":           {time.Second, time.Hour, false},
		"the wall clock was set back":              {time.Second, -time.Hour, false},
		"the machine was suspended":                {time.Second, 3 * time.Second, false},
		"suspended, and the wall clock set back":   {time.Second, time.Second, true}, // exactly as long: no clock can tell
		"suspended, and set back by a little more": {5 * time.Second, 3 * time.Second, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := entryplan.Trusted(tc.monotonic, tc.wall, trust); got != tc.want {
				t.Errorf("trusted: %v", got)
			}
		})
	}
}
