package bench

import "testing"

// The figures to compare with were measured with Pods of these sizes.
func TestFixturePodsHaveTheirSize(t *testing.T) {
	for size, want := range map[PodSize]int{Small: 9_269, Big: 60_488} {
		t.Run(size.Name, func(t *testing.T) {
			got := len(mustEncode(size.Pod(true)))
			if got < want*95/100 || got > want*105/100 {
				t.Errorf("the Pod has %d bytes, want %d ± 5 %%; managedFields take %d", got, want, len(mustEncode(size.Pod(true).ManagedFields)))
			}
		})
	}
}
