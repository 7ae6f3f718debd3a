package entryplan_test

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sidecarset/operator/internal/entryplan"
)

// optOut is the label and the annotation of the manifests by which AKS leaves an object as it is.
const optOut = "admissions.enforcer/disabled"

// The manifests own the label and the annotation, so every plan keeps them.
func TestPlansKeepLabelsAndAnnotationsOfOthers(t *testing.T) {
	l := bare()
	for _, c := range l {
		c.Labels[optOut] = "true"
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[optOut] = "true"
	}
	check := func(after string) {
		t.Helper()
		for _, c := range l {
			if c.Labels[optOut] != "true" || c.Annotations[optOut] != "true" {
				t.Errorf("after %s, %s has the labels %v and the annotations %v", after, c.Name, c.Labels, c.Annotations)
			}
		}
	}
	e := entryOf(t, sidecarSet("log", "web"))
	changes, unplaced := widen(l, []entryplan.Entry{e}, settings())
	if len(changes) == 0 || len(unplaced) > 0 {
		t.Fatalf("Widen = %v, %v", changes, unplaced)
	}
	l = carryOut(l, changes)
	check("a provisional entry was added")

	l, _ = settle(t, calm(l, e))
	check("an entry was written")
	webhookOf(l, e.Name).FailurePolicy = new(admissionregistrationv1.Ignore)
	l, _ = settle(t, calm(l, e))
	check("an edited entry was restored")
	removed := carryOut(l, entryplan.RemoveAll(l))
	l, _ = settle(t, calm(l))
	check("an entry was removed")
	if !l.Empty() {
		t.Errorf("an entry is left: %v", l)
	}
	l = removed
	check("all entries were removed")
}
