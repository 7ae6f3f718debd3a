package inplace

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sidecarset/operator/internal/jsonread"
)

// parseQuantity reads a quantity that a Pod's author may have written.
func parseQuantity(text string) (q resource.Quantity, ok bool) {
	if !jsonread.IsShortQuantity(text) {
		return q, false
	}
	q, err := resource.ParseQuantity(text)
	return q, err == nil
}

// textOf is the shortest text of a quantity. Quantity.String may return what the
// author wrote, with any number of zeros in front.
func textOf(q resource.Quantity) string {
	var short resource.Quantity
	short.Add(q)
	return short.String()
}

// equal reports whether two quantities are the same. A quantity that is too long to be
// compared is not equal to any.
func equal(a, b resource.Quantity) bool {
	return jsonread.IsShortQuantity(textOf(a)) && jsonread.IsShortQuantity(textOf(b)) && a.Cmp(b) == 0
}

// areShort reports whether quantities are short enough to be compared with each other.
func areShort(lists ...corev1.ResourceList) bool {
	for _, list := range lists {
		for _, q := range list {
			if !jsonread.IsShortQuantity(textOf(q)) {
				return false
			}
		}
	}
	return true
}
