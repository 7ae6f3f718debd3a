package stand

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTestsAreDealtOutByHowLongTheyTake(t *testing.T) {
	got := distribute([]string{"A", "B", "C", "D", "E"}, map[string]int{"B": 30, "D": 20, "E": 9}, 2)
	if diff := cmp.Diff([][]string{{"B", "C"}, {"D", "E", "A"}}, got); diff != "" {
		t.Errorf("shards (-want +got):\n%s", diff)
	}
}
