package podstate_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/test/recorded"
)

// What a kubelet has published, version by version, and what the operator is told by it.
// `go test ./test/node -run Facts -args -record` records the files.
func TestWhatAKubeletPublishes(t *testing.T) {
	files, err := filepath.Glob("testdata/kubelet/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("there are %d records: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			s, err := recorded.Read(file)
			if err != nil {
				t.Fatal(err)
			}
			var want, got []string
			for _, v := range s.Versions {
				want = append(want, v.Told)
			}
			if err := s.Replay(); err != nil {
				t.Error(err)
			}
			for _, v := range s.Versions {
				got = append(got, v.Told)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s\nThe operator is told (-recorded +now):\n%s", s.Fact, diff)
			}
		})
	}
}
