package entries

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// namedSets is an API server with recorded names and SidecarSets. It notes each read. Each
// answer takes a millisecond.
type namedSets struct {
	client.Reader
	object   *metav1.ObjectMeta // has the recorded names; nil if there is none
	versions map[string]string  // of the stored SidecarSets
	err      error              // of reads of SidecarSets
	delay    time.Duration      // of the answer about names

	mu    sync.Mutex
	asked []string
}

func (s *namedSets) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, what)
}

func (s *namedSets) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	object, ok := into.(*metav1.PartialObjectMetadata)
	if !ok {
		return errors.New("more than metadata")
	}
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	switch object.GroupVersionKind().String() {
	case "admissionregistration.k8s.io/v1, Kind=MutatingWebhookConfiguration":
		s.note("names")
		<-time.After(s.delay)
		if key.Name != "sidecarset-pods-provisional" || s.object == nil {
			return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		}
		s.object.DeepCopyInto(&object.ObjectMeta)
	case "apps.kruise.io/v1beta1, Kind=SidecarSet":
		s.note(key.Name)
		if s.err != nil {
			return s.err
		}
		version, ok := s.versions[key.Name]
		if !ok {
			return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		}
		object.ResourceVersion = version
	default:
		return fmt.Errorf("reading %s", object.GroupVersionKind())
	}
	return nil
}

func (s *namedSets) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	s.note("list")
	into.(*metav1.PartialObjectMetadataList).ResourceVersion = "100"
	return nil
}

// recorded returns the object with these recorded names, as replicas and leaders write it,
// after a leader has removed entryplan.RecentAny.
func recorded(contents map[string]string) *metav1.ObjectMeta {
	l := entryplan.Layout{}
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	c.Name, c.ResourceVersion = entryplan.ConfigurationName(entryplan.Provisional), "50"
	c.Annotations = map[string]string{"sidecarset.io/recent": `{"names":{}}`}
	l[entryplan.Provisional] = c
	if change, ok := entryplan.Record(l, contents, &entryplan.Settings{}); ok && len(contents) > 0 {
		c = change.Object
	}
	return &c.ObjectMeta
}

// A Pod on the fresh path costs these reads. Only some cases need a list of all SidecarSets.
func TestAPodOnTheFreshPathSeldomNeedsAList(t *testing.T) {
	many := map[string]string{}
	for i := range mostRead + 1 {
		many[fmt.Sprint("set-", i)] = ""
	}
	type given struct {
		server  *namedSets
		catalog *knownVersions
		before  func(*Freshness)
	}
	annotated := func(key, value string) *metav1.ObjectMeta {
		object := recorded(map[string]string{"log": "new"})
		object.Annotations[key] = value
		return object
	}
	holds := &knownVersions{contents: map[string]string{"log": "new", "db": "new"}}
	byList := []string{"names", "list"}
	tests := map[string]struct {
		given
		asked  []string
		waited snapshot.Versions // nil if Know does not wait
	}{
		"no names are recorded":          {given{server: &namedSets{object: recorded(nil)}}, []string{"names"}, nil},
		"the snapshot holds all of them": {given{server: &namedSets{object: recorded(map[string]string{"log": "new", "db": "new"})}, catalog: holds}, []string{"names"}, nil},
		"it holds one as it was before":  {given{server: &namedSets{object: recorded(map[string]string{"log": "newer", "db": "new"}), versions: map[string]string{"log": "60"}}, catalog: holds}, []string{"log", "names"}, snapshot.Versions{"log": 60}},
		"it lacks one":                   {given{server: &namedSets{object: recorded(map[string]string{"web": "new"}), versions: map[string]string{"web": "60"}}}, []string{"names", "web"}, snapshot.Versions{"web": 60}},
		"one is not stored":              {given{server: &namedSets{object: recorded(map[string]string{"web": "new"})}}, []string{"names", "web"}, snapshot.Versions{}},
		"two reviews differ":             {given{server: &namedSets{object: recorded(map[string]string{"log": ""}), versions: map[string]string{"log": "60"}}, catalog: holds}, []string{"log", "names"}, snapshot.Versions{"log": 60}},
		"there are too many":             {given{server: &namedSets{object: recorded(many)}}, byList, nil},
		"any may be on its way":          {given{server: &namedSets{object: recorded(map[string]string{entryplan.RecentAny: ""})}}, byList, nil},
		"nothing says so":                {given{server: &namedSets{object: &metav1.ObjectMeta{ResourceVersion: "50"}}}, byList, nil},
		"it cannot be read":              {given{server: &namedSets{object: annotated("sidecarset.io/recent", "[]")}}, byList, nil},
		"it is of a newer version":       {given{server: &namedSets{object: annotated("sidecarset.io/format", "9")}, catalog: holds}, byList, nil},
		"an older version widened":       {given{server: &namedSets{object: annotated("sidecarset.io/widened", `{"x.provisional.pods.sidecarset.io":7}`)}, catalog: holds}, byList, nil},
		"there is no object":             {given{server: &namedSets{}}, byList, nil},
		"the API server fails":           {given{server: &namedSets{object: recorded(map[string]string{"web": "new"}), err: errors.New("etcd is away")}}, []string{"list", "names", "web"}, nil},
		"the check is too old":           {given{server: &namedSets{object: recorded(nil)}, before: func(*Freshness) { <-time.After(entryplan.Trust + 1) }}, []string{"list"}, nil},
		"it is too old in the end": {given{server: &namedSets{object: recorded(nil), delay: 500 * time.Millisecond}, before: func(*Freshness) { <-time.After(entryplan.Trust - 100*time.Millisecond) }},
			byList, nil},
		"the names were newer before": {given{server: &namedSets{object: recorded(nil)}, before: func(f *Freshness) { f.recorded.Store(51) }}, byList, nil},
		"etcd was restored":           {given{server: &namedSets{object: recorded(map[string]string{"web": "new"}), versions: map[string]string{"web": "9"}}, catalog: &knownVersions{ahead: "web"}}, []string{"list", "names", "web"}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				catalog := &knownVersions{}
				if tc.catalog != nil {
					catalog.contents, catalog.ahead = tc.catalog.contents, tc.catalog.ahead
				}
				f := NewFreshness(tc.server, catalog, snapshot.NewTimeline(), entryplan.Trust)
				f.certify(time.Now())
				if tc.before != nil {
					tc.before(f)
				}
				if err := f.Know(t.Context()); (err != nil) != (catalog.ahead != "") || err != nil && !errors.As(err, new(*snapshot.RestoredError)) {
					t.Error(err)
				}
				slices.Sort(tc.server.asked)
				slices.Sort(tc.asked)
				if diff := cmp.Diff(tc.asked, tc.server.asked); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
				if waited := catalog.versions(); !slices.Contains(tc.asked, "list") {
					var want []snapshot.Versions
					if tc.waited != nil {
						want = append(want, tc.waited)
					}
					if diff := cmp.Diff(want, waited); diff != "" {
						t.Errorf("waited for (-want +got):\n%s", diff)
					}
				}
			})
		})
	}
}

// Know reads the SidecarSets that it read for the last Pod together with the names.
func TestKnowReadsNamesAndSidecarSetsAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &namedSets{object: recorded(map[string]string{"log": ""}), versions: map[string]string{"log": "60"}}
		f := NewFreshness(server, &knownVersions{}, snapshot.NewTimeline(), entryplan.Trust)
		f.certify(time.Now())
		for i, want := range []time.Duration{2 * time.Millisecond, time.Millisecond} {
			start := time.Now()
			if err := f.Know(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took != want {
				t.Errorf("Pod %d waited for %v, want %v of simulated time", i+1, took, want)
			}
		}
	})
}
