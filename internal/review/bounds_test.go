package review_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/members"
	"github.com/sidecarset/operator/internal/review"
)

func TestListsOfAPodAreBounded(t *testing.T) {
	for _, list := range members.OfPods() {
		for n, refused := range map[int]bool{review.MaxElements: false, review.MaxElements + 1: true, 2_000_000: true} {
			document := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","resource":{"resource":"pods"},"operation":"CREATE","namespace":"n",` +
				`"object":{"metadata":{},"spec":{"` + list + `":[` + strings.Repeat("{},", n-1) + `{}]}}}}`
			_, pod, err := read([]byte(document))
			var long *review.LongListError
			if errors.As(err, &long) != refused || refused && long.Field != "spec."+list {
				t.Errorf("%d elements of %s: %v", n, list, err)
			}
			if got := len(pod.Containers) + len(pod.InitContainers) + len(pod.Volumes) + len(pod.ImagePullSecrets); got > review.MaxElements+1 {
				t.Errorf("%d of %d elements of %s were read", got, n, list)
			}
		}
	}
}
