package entries

import (
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/entryplan"
)

// configuration returns sidecarset-pods-1 in a version, with a serial.
func configuration(uid types.UID, version string, serial int64) *admissionregistrationv1.MutatingWebhookConfiguration {
	name := entryplan.ConfigurationName(1)
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, ResourceVersion: version, Labels: map[string]string{entryplan.LabelConfiguration: "true"}},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: name + ".barrier.sidecarset.io",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service: &admissionregistrationv1.ServiceReference{Path: new(entryplan.BarrierPath(name, serial))},
			},
		}},
	}
}

// newConfigurationStore returns the store of a cluster with these objects.
func newConfigurationStore(stored ...*admissionregistrationv1.MutatingWebhookConfiguration) (*configurationStore, *cluster) {
	c := &cluster{configurations: map[string]*admissionregistrationv1.MutatingWebhookConfiguration{}}
	for _, object := range stored {
		c.configurations[object.Name] = object
	}
	c.store = &configurationStore{live: c, writer: c, notify: func() {}}
	return c.store, c
}

// known returns the version of the object that the store has; "" if it has none.
func known(s *configurationStore) string {
	if c := s.current()[1]; c != nil {
		return c.ResourceVersion
	}
	return ""
}

func TestTheStoreKeepsTheNewest(t *testing.T) {
	before := configuration("a", "9", 1)
	tests := map[string]struct {
		happens func(*configurationStore)
		want    string
	}{
		"the watch is behind our own write": {func(s *configurationStore) { s.changed("", configuration("a", "8", 1), configuration("a", "7", 1)) }, "9"},
		"the watch is ahead of us":          {func(s *configurationStore) { s.changed("", configuration("a", "10", 1), before) }, "10"},
		"versions have no order":            {func(s *configurationStore) { s.changed("", configuration("a", "x", 1), before) }, "x"},
		"it was deleted":                    {func(s *configurationStore) { s.changed("", nil, before) }, ""},
		"its deletion was missed": {func(s *configurationStore) {
			s.changed("", nil, configuration("a", "5", 1))
		}, ""},
		"one before it was deleted": {func(s *configurationStore) { s.changed("", nil, configuration("b", "5", 1)) }, "9"},
		"another object was told of": {func(s *configurationStore) {
			theirs := configuration("c", "20", 1)
			theirs.Name = "theirs"
			s.changed("", theirs, nil)
		}, "9"},
		"another one of its name is a copy without the label": {func(s *configurationStore) {
			copied := configuration("a", "20", 1)
			copied.Labels = nil
			s.changed("", copied, nil)
		}, "9"},
		"its label was removed": {func(s *configurationStore) {
			without := configuration("a", "20", 1)
			without.Labels = nil
			s.changed("", without, before)
		}, ""},
		"the cluster was restored": {func(s *configurationStore) { s.changed("", configuration("a", "3", 1), before) }, "3"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, _ := newConfigurationStore()
			s.changed("", before, nil)
			tc.happens(s)
			if got := known(s); got != tc.want {
				t.Errorf("version %q is known, want %q", got, tc.want)
			}
		})
	}
}

// After a conflict, the store takes the object that it reads, whatever its version is.
// Otherwise each write would meet the same conflict again.
func TestTheStoreTakesTheStoredObjectAfterAConflict(t *testing.T) {
	tests := map[string]*admissionregistrationv1.MutatingWebhookConfiguration{
		"with a newer object":                  configuration("a", "12", 1),
		"with one from before a restoration":   configuration("a", "3", 1),
		"with another one of its name":         configuration("b", "12", 1),
		"with one whose version has no number": configuration("a", "x", 1),
	}
	for name, stored := range tests {
		t.Run(name, func(t *testing.T) {
			s, c := newConfigurationStore(stored)
			s.changed("", configuration("a", "9", 1), nil)
			stale, err := s.write(t.Context(), entryplan.Change{Index: 1, Object: s.current()[1]})
			if !stale || err != nil {
				t.Fatalf("the first write: stale %v, %v", stale, err)
			}
			if stale, err = s.write(t.Context(), entryplan.Change{Index: 1, Object: s.current()[1]}); stale || err != nil || c.writes != 1 {
				t.Errorf("after the second write, %d were accepted: stale %v, %v", c.writes, stale, err)
			}
		})
	}
}

func TestTheStoreForgetsADeletedObjectAfterAConflict(t *testing.T) {
	s, _ := newConfigurationStore()
	s.changed("", configuration("a", "9", 1), nil)
	stale, err := s.write(t.Context(), entryplan.Change{Index: 1, Object: s.current()[1]})
	if !stale || err != nil || known(s) != "" {
		t.Errorf("stale %v, %v; known is %q", stale, err, known(s))
	}
}

// API servers may still use an object that was deleted, and the clock of the replica that
// wrote it may have been ahead.
func TestSerialsDoNotComeTwice(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	s, _ := newConfigurationStore()
	if got := s.minSerial(now); got != 1_000_000 {
		t.Errorf("the first serial is %d", got)
	}
	ahead := configuration("a", "9", 1_300_000)
	s.changed("", ahead, nil)
	s.changed("", nil, ahead)
	if got := s.minSerial(now); got <= 1_300_000 {
		t.Errorf("serial %d was there before", got)
	}
	s.changed("", configuration("b", "10", 5), nil) // a copy from a backup
	if got := s.minSerial(now); got <= 1_300_000 {
		t.Errorf("serial %d was there before", got)
	}
}
