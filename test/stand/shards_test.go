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

func TestTestsThatRunAloneComeAfterTheOthers(t *testing.T) {
	options := Options{Seconds: map[string]int{"B": 30}, Alone: []string{"A", "C"}}
	concurrent, after := deal([]string{"A", "B", "C", "D"}, options, 3)
	if diff := cmp.Diff([][]string{{"B"}, {"D"}}, concurrent); diff != "" {
		t.Errorf("concurrent (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"A", "C"}, after); diff != "" {
		t.Errorf("after (-want +got):\n%s", diff)
	}
	if concurrent, after = deal([]string{"A", "C"}, options, 3); len(concurrent) != 1 || len(after) > 0 {
		t.Errorf("with nothing to come after: %v, then %v", concurrent, after)
	}
}

func TestParallelTestsHaveAProcessForThemselves(t *testing.T) {
	options := Options{Parallel: []string{"B", "D"}}
	concurrent, _ := deal([]string{"A", "B", "C", "D"}, options, 2)
	if diff := cmp.Diff([][]string{{"A"}, {"C"}, {"B", "D"}}, concurrent); diff != "" {
		t.Errorf("concurrent (-want +got):\n%s", diff)
	}
	concurrent, _ = deal([]string{"B", "D"}, options, 2)
	if diff := cmp.Diff([][]string{{"B", "D"}}, concurrent); diff != "" {
		t.Errorf("with nothing else (-want +got):\n%s", diff)
	}
}
