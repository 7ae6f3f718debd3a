package entry_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/entry"
)

func TestNamesAndPathsAreReadBack(t *testing.T) {
	t.Parallel()
	for slot := range entry.Slots {
		name, ok := entry.Index(entry.ConfigurationName(slot))
		label, isBarrier := entry.ParseBarrierPath(entry.BarrierPath(slot))
		at, number, isPods := entry.ParsePodsPath(entry.PodsPath(slot, math.MaxUint64))
		if !ok || !isBarrier || !isPods || name != slot || label != entry.BarrierLabel(slot) || at != slot || number != math.MaxUint64 {
			t.Errorf("slot %d is read as %d, %s and %d", slot, name, label, at)
		}
	}
	for _, name := range []string{"sidecarset-pods-", "sidecarset-pods-16", "sidecarset-pods-01", "other"} {
		if got, ok := entry.Index(name); ok {
			t.Errorf("Index(%q) = %d, want none", name, got)
		}
	}
}

// A path is read only in the form in which it is written: each is a client of its own in an API
// server, and a call by another one comes from a stranger.
func FuzzPathsHaveOneForm(f *testing.F) {
	for _, path := range []string{
		"", "/pods", "/pods/", "/pods/3", "/pods/3/", "/pods/3/7", "/pods/3/7/", "/pods/16/7", "/pods/03/7", "/pods/3/07", "/pods/3/+7", "/pods/3/-7",
		"/pods/-1/7", "/pods//7", "/pods/3/18446744073709551616", "/pods/3/seven", "pods/3/7", "/pods/3/7?", "/pods/static/7",
		"/barrier/", "/barrier/3", "/barrier/3/", "/barrier/03", "/barrier/16", "/barrier/-1", "/barrier/static", "/barrier/static/", "barrier/3",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if slot, number, ok := entry.ParsePodsPath(path); ok && entry.PodsPath(slot, number) != path {
			t.Errorf("%q is read as %d, %d", path, slot, number)
		}
		if label, ok := entry.ParseBarrierPath(path); ok && strings.TrimPrefix(label, "sidecarset.io/barrier-") != strings.TrimPrefix(path, "/barrier/") {
			t.Errorf("%q is read as %q", path, label)
		}
	})
}

func TestParseReadsWhatItKnows(t *testing.T) {
	t.Parallel()
	e := entryOf(t, sidecarSet("log", "web"))
	whole := holding(t, e)
	tests := map[string]struct {
		edit   func(*configuration)
		err    error
		record bool // is left
	}{
		"as it was written":           {func(*configuration) {}, nil, true},
		"of a newer format":           {func(c *configuration) { c.Annotations[entry.AnnotationFormat] = "3" }, entry.ErrFormat, false},
		"a record that is no JSON":    {func(c *configuration) { c.Annotations["sidecarset.io/slot"] = "{" }, nil, false},
		"a record of a later version": {func(c *configuration) { c.ResourceVersion = "99" }, nil, false},
		"a name that is no slot's":    {func(c *configuration) { c.Name = "sidecarset-pods-16" }, errors.New("sidecarset-pods-16"), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := whole.Object.DeepCopy()
			tc.edit(c)
			s, err := entry.Parse(c)
			switch {
			case tc.err != nil:
				if err == nil || !errors.Is(err, tc.err) && !strings.Contains(err.Error(), tc.err.Error()) {
					t.Errorf("Parse = %v, %v; want an error about %v", s, err, tc.err)
				}
			case err != nil:
				t.Fatal(err)
			case s.Holds(e.Name, e.Needs[0]) != tc.record || (s.Serial > 0) != tc.record:
				t.Errorf("serial %d, needs %v; want a record: %v", s.Serial, s.Needs, tc.record)
			case !tc.record:
				// The leader writes a whole one again, with a new number.
				again := stored(t, s.Reconcile([]entry.Entry{e}, nil, false, settings()).Next)
				if !again.Has(&e, settings()) || again.PathSerial != s.Version {
					t.Errorf("number %d, needs %v after version %d", again.PathSerial, again.Needs, s.Version)
				}
			}
		})
	}
}
