package inplace

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What the text of a quantity may have. Every value that a node can have is shorter.
const (
	mostDigits   = 32 // with point, sign and suffix
	mostExponent = 3  // characters behind the e of an exponent
)

// IsShortQuantity reports whether the text of a quantity is so short that it costs nothing
// to parse it and to compare what it says. 1e900000000 is parsed at once, and has
// 900 million digits as soon as it is compared with 1.
func IsShortQuantity(text string) bool {
	e := strings.IndexAny(text, "eE")
	return len(text) <= mostDigits && (e < 0 || len(text)-e-1 <= mostExponent)
}

// parseQuantity reads a quantity that a Pod's author may have written.
func parseQuantity(text string) (q resource.Quantity, ok bool) {
	if !IsShortQuantity(text) {
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

// areShort reports whether quantities may be compared with each other.
func areShort(lists ...corev1.ResourceList) bool {
	for _, list := range lists {
		for _, q := range list {
			if !IsShortQuantity(textOf(q)) {
				return false
			}
		}
	}
	return true
}
