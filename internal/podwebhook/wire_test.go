package podwebhook_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/podwebhook"
)

func TestNamesAndPathsAreReadBack(t *testing.T) {
	t.Parallel()
	for shard := range podwebhook.Shards {
		name, ok := podwebhook.ShardNumber(podwebhook.ConfigurationName(shard))
		label, isProbe := podwebhook.ParseProbePath(podwebhook.ProbePath(shard))
		at, number, isPods := podwebhook.ParsePodsPath(podwebhook.PodsPath(shard, math.MaxUint64))
		if !ok || !isProbe || !isPods || name != shard || label != podwebhook.ProbeLabel(shard) || at != shard || number != math.MaxUint64 {
			t.Errorf("shard %d is read as %d, %s and %d", shard, name, label, at)
		}
	}
	for _, name := range []string{"sidecarset-pods-", "sidecarset-pods-16", "sidecarset-pods-01", "other"} {
		if got, ok := podwebhook.ShardNumber(name); ok {
			t.Errorf("Index(%q) = %d, want none", name, got)
		}
	}
}

// A path is read only in the form in which it is written: each is a client of its own in an API
// server, and a call by another one comes from an unauthenticated client.
func FuzzPathsHaveOneForm(f *testing.F) {
	for _, path := range []string{
		"", "/pods", "/pods/", "/pods/3", "/pods/3/", "/pods/3/7", "/pods/3/7/", "/pods/16/7", "/pods/03/7", "/pods/3/07", "/pods/3/+7", "/pods/3/-7",
		"/pods/-1/7", "/pods//7", "/pods/3/18446744073709551616", "/pods/3/seven", "pods/3/7", "/pods/3/7?", "/pods/static/7",
		"/probe/", "/probe/3", "/probe/3/", "/probe/03", "/probe/16", "/probe/-1", "/probe/static", "/probe/static/", "probe/3",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if shard, number, ok := podwebhook.ParsePodsPath(path); ok && podwebhook.PodsPath(shard, number) != path {
			t.Errorf("%q is read as %d, %d", path, shard, number)
		}
		if label, ok := podwebhook.ParseProbePath(path); ok && strings.TrimPrefix(label, "sidecarset.io/probe-") != strings.TrimPrefix(path, "/probe/") {
			t.Errorf("%q is read as %q", path, label)
		}
	})
}

func TestParseReadsWhatItKnows(t *testing.T) {
	t.Parallel()
	e := podWebhook(t, sidecarSet("log", "web"))
	whole := holding(t, e)
	tests := map[string]struct {
		edit   func(*configuration)
		err    error
		record bool // is left
	}{
		"as it was written":           {func(*configuration) {}, nil, true},
		"of a newer format":           {func(c *configuration) { c.Annotations[podwebhook.AnnotationFormat] = "4" }, podwebhook.ErrFormat, false},
		"a record that is no JSON":    {func(c *configuration) { c.Annotations["sidecarset.io/shard"] = "{" }, nil, false},
		"a record of a later version": {func(c *configuration) { c.ResourceVersion = "99" }, nil, false},
		"a name that is no shard's":   {func(c *configuration) { c.Name = "sidecarset-pods-16" }, errors.New("sidecarset-pods-16"), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := whole.Object.DeepCopy()
			tc.edit(c)
			s, err := podwebhook.Parse(c)
			switch {
			case tc.err != nil:
				if err == nil || !errors.Is(err, tc.err) && !strings.Contains(err.Error(), tc.err.Error()) {
					t.Errorf("Parse = %v, %v; want an error about %v", s, err, tc.err)
				}
			case err != nil:
				t.Fatal(err)
			case s.HasDependency(e.Name, e.Dependencies[0]) != tc.record || (s.Serial > 0) != tc.record:
				t.Errorf("serial %d, needs %v; want a record: %v", s.Serial, s.Dependencies, tc.record)
			case !tc.record:
				// The leader writes a whole one again, with a new number.
				again := stored(t, s.Reconcile([]podwebhook.Webhook{e}, nil, false, settings()).Next)
				if !again.Has(&e, settings()) || again.RequiredSerial != s.Version {
					t.Errorf("number %d, needs %v after version %d", again.RequiredSerial, again.Dependencies, s.Version)
				}
			}
		})
	}
}
