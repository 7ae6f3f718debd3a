package revision

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

var logOwner = Owner{Name: "log", UID: "uid-1", Hash: "h", HashWithoutImage: "hw"}

// recordedAs is a revision of SidecarSet log.
func recordedAs(name string, number int64, edit ...func(*appsv1.ControllerRevision)) *appsv1.ControllerRevision {
	r := New(logOwner, "system", []byte(name), 0, number)
	r.Name = name
	for _, e := range edit {
		e(r)
	}
	return r
}

func ownedBy(uid types.UID) func(*appsv1.ControllerRevision) {
	return func(r *appsv1.ControllerRevision) { r.OwnerReferences[0].UID = uid }
}

func orphaned(r *appsv1.ControllerRevision) { r.OwnerReferences = nil }

func version(v string) func(*appsv1.ControllerRevision) {
	return func(r *appsv1.ControllerRevision) { r.Labels[appsv1beta1.LabelCustomVersion] = v }
}

func labelledFor(sidecarSet string) func(*appsv1.ControllerRevision) {
	return func(r *appsv1.ControllerRevision) { r.Labels[appsv1beta1.LabelSidecarSetName] = sidecarSet }
}

func names(revisions []*appsv1.ControllerRevision) []string {
	var all []string
	for _, r := range revisions {
		all = append(all, r.Name)
	}
	return all
}

func TestNewHistory(t *testing.T) {
	older := func(r *appsv1.ControllerRevision) { r.CreationTimestamp = metav1.Unix(1, 0) }
	newer := func(r *appsv1.ControllerRevision) { r.CreationTimestamp = metav1.Unix(2, 0) }
	h := NewHistory([]*appsv1.ControllerRevision{
		recordedAs("tenth", 10), recordedAs("b", 3, newer), recordedAs("c", 3, older), recordedAs("a", 3, newer),
		recordedAs("deleted-set", 4, ownedBy("uid-0")), recordedAs("nobodys", 2, orphaned), recordedAs("other-set", 5, labelledFor("mesh")),
	}, logOwner)
	if diff := cmp.Diff([]string{"nobodys", "c", "a", "b", "tenth"}, names(h)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

func TestFind(t *testing.T) {
	h := History{recordedAs("a", 1), recordedAs("b", 4), recordedAs("c", 7)}
	tests := map[string]struct {
		history History
		data    string
		found   string
		number  int64
	}{
		"the first revision is number one":                {nil, "a", "", 1},
		"a new revision follows the newest":               {h, "d", "", 8},
		"the newest stays as it is":                       {h, "c", "c", 7},
		"an older revision becomes the newest (rollback)": {h, "a", "a", 8},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			found, number := tc.history.Find([]byte(tc.data))
			got := ""
			if found != nil {
				got = found.Name
			}
			if got != tc.found || number != tc.number {
				t.Errorf("found %q as number %d, want %q as %d", got, number, tc.found, tc.number)
			}
		})
	}
}

func TestAdopts(t *testing.T) {
	candidate := recordedAs("a", 2)
	tests := map[string]struct {
		existing *appsv1.ControllerRevision
		want     bool
	}{
		"the owner's own":                            {recordedAs("a", 1), true},
		"one without an owner":                       {recordedAs("a", 1, orphaned), true},
		"another revision is a collision":            {recordedAs("b", 1), false},
		"that of a deleted SidecarSet will vanish":   {recordedAs("a", 1, ownedBy("uid-0")), false},
		"what is labelled for another one is not it": {recordedAs("a", 1, labelledFor("mesh")), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Adopts(tc.existing, candidate, logOwner); got != tc.want {
				t.Errorf("Adopts = %t", got)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	revisions := []*appsv1.ControllerRevision{
		recordedAs("a", 1, version("v1")), recordedAs("b", 3, version("v1")), recordedAs("c", 2, version("v2")),
		recordedAs("d", 9), recordedAs("foreign", 9, labelledFor("mesh"), version("v1")),
		recordedAs("mine", 4, version("v4")), recordedAs("orphan", 3, orphaned, version("v4")), recordedAs("former", 10, ownedBy("gone"), version("v4")),
	}
	tests := map[string]struct {
		ref  appsv1beta1.SidecarSetInjectRevision
		want string
	}{
		"by name":                           {appsv1beta1.SidecarSetInjectRevision{RevisionName: new("d")}, "d"},
		"the newest of a version":           {appsv1beta1.SidecarSetInjectRevision{CustomVersion: new("v1")}, "b"},
		"the name wins":                     {appsv1beta1.SidecarSetInjectRevision{RevisionName: new("c"), CustomVersion: new("v1")}, "c"},
		"no such name":                      {appsv1beta1.SidecarSetInjectRevision{RevisionName: new("x"), CustomVersion: new("v1")}, ""},
		"no such version":                   {appsv1beta1.SidecarSetInjectRevision{CustomVersion: new("v3")}, ""},
		"an empty version has no revision":  {appsv1beta1.SidecarSetInjectRevision{CustomVersion: new("")}, ""},
		"a former SidecarSet's by its name": {appsv1beta1.SidecarSetInjectRevision{RevisionName: new("former")}, ""},
		"its own, though a former one has recorded later": {appsv1beta1.SidecarSetInjectRevision{CustomVersion: new("v4")}, "mine"},
		"one without an owner":                            {appsv1beta1.SidecarSetInjectRevision{RevisionName: new("orphan")}, "orphan"},
		"another SidecarSet's by its name":                {appsv1beta1.SidecarSetInjectRevision{RevisionName: new("foreign")}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ref, ok := ReferenceOf(&tc.ref)
			if !ok {
				t.Fatal("it names nothing")
			}
			got := ""
			if chosen := NewHistory(revisions, logOwner).Choose(ref); chosen != nil {
				got = chosen.Name
			}
			if got != tc.want {
				t.Errorf("chose %q, want %q", got, tc.want)
			}
		})
	}
}

func TestReferenceOfNothing(t *testing.T) {
	for _, r := range []*appsv1beta1.SidecarSetInjectRevision{nil, {}} {
		if _, ok := ReferenceOf(r); ok {
			t.Errorf("%v names something", r)
		}
	}
}

// keep says which revisions stay: the limit, the revision that injection uses, and those that
// Pods run.
type keep struct {
	Limit    *int32
	Referred *appsv1beta1.SidecarSetInjectRevision
	InUse    map[string]bool
}

func (k keep) surplus(h History) (History, int) {
	spec := appsv1beta1.SidecarSetSpec{RevisionHistoryLimit: k.Limit}
	spec.InjectionStrategy.Revision = k.Referred
	return h.Surplus(&spec, func(name string) bool { return k.InUse[name] })
}

func TestSurplus(t *testing.T) {
	inUse := func(from, to int) map[string]bool {
		used := map[string]bool{}
		for i := from; i <= to; i++ {
			used[fmt.Sprint(i)] = true
		}
		return used
	}
	numbered := func(from, to int) (all []string) {
		for i := from; i <= to; i++ {
			all = append(all, fmt.Sprint(i))
		}
		return all
	}
	tests := map[string]struct {
		revisions int
		keep      keep
		want      []string
		tooMany   int
	}{
		"fifteen, Pods use the first eight":   {15, keep{InUse: inUse(1, 8)}, numbered(9, 13), 0},
		"fifteen, Pods use the first ten":     {15, keep{InUse: inUse(1, 10)}, numbered(11, 14), 1},
		"ten is not too many":                 {10, keep{}, nil, 0},
		"oldest first":                        {12, keep{}, numbered(1, 2), 0},
		"a limit of zero keeps the latest":    {3, keep{Limit: new(int32(0))}, numbered(1, 2), 0},
		"one that injection names stays":      {4, keep{Limit: new(int32(1)), Referred: &appsv1beta1.SidecarSetInjectRevision{RevisionName: new("2")}}, []string{"1", "3"}, 1},
		"the newest of a named version stays": {4, keep{Limit: new(int32(1)), Referred: &appsv1beta1.SidecarSetInjectRevision{CustomVersion: new("v")}}, []string{"1", "3"}, 1},
		"no history":                          {0, keep{}, nil, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var h History
			for i := range tc.revisions {
				r := recordedAs(fmt.Sprint(i+1), int64(i+1))
				if i < 2 {
					version("v")(r)
				}
				h = append(h, r)
			}
			surplus, tooMany := tc.keep.surplus(h)
			if diff := cmp.Diff(tc.want, names(surplus)); diff != "" || tooMany != tc.tooMany {
				t.Errorf("%d too many, want %d; surplus (-want +got):\n%s", tooMany, tc.tooMany, diff)
			}
		})
	}
}

// Every replica holds all revisions, and the user who writes the SidecarSet chooses the limit.
func TestSurplusBoundsBytes(t *testing.T) {
	var h History
	for i := range 20 {
		r := recordedAs(fmt.Sprint(i+1), int64(i+1))
		r.Data.Raw = make([]byte, 500<<10)
		h = append(h, r)
	}
	surplus, tooMany := keep{Limit: new(int32(1000)), InUse: map[string]bool{"3": true}}.surplus(h)
	want := []string{"1", "2", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"}
	if diff := cmp.Diff(want, names(surplus)); diff != "" || tooMany != 0 {
		t.Errorf("%d too many; surplus (-want +got):\n%s", tooMany, diff)
	}
	if surplus, _ := (keep{Limit: new(int32(0))}).surplus(h[:1]); len(surplus) != 0 {
		t.Errorf("the only revision is surplus: %v", names(surplus))
	}
}

func TestNew(t *testing.T) {
	owner := Owner{
		Name: "s1", UID: "u", CustomVersion: "v1", Hash: "h", HashWithoutImage: "hw",
		Labels: map[string]string{"team": "a", appsv1beta1.LabelSidecarSetName: "wrong"},
		Annotations: map[string]string{
			"note": "n", appsv1beta1.AnnotationHash: "h", "kubectl.kubernetes.io/last-applied-configuration": "{}",
		},
	}
	want := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "system", Name: "s1-6d5857687f",
			Labels: map[string]string{
				"team": "a", "kruise.io/sidecarset-name": "s1", "controller.kubernetes.io/hash": "6d5857687f",
				"apps.kruise.io/sidecarset-custom-version": "v1",
			},
			Annotations: map[string]string{"note": "n", "kruise.io/sidecarset-hash": "h", "kruise.io/sidecarset-hash-without-image": "hw"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps.kruise.io/v1beta1", Kind: "SidecarSet", Name: "s1", UID: "u", Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		Data:     runtime.RawExtension{Raw: []byte(exampleData)},
		Revision: 1,
	}
	if diff := cmp.Diff(want, New(owner, "system", []byte(exampleData), 0, 1)); diff != "" {
		t.Errorf("revision (-want +got):\n%s", diff)
	}
	owner.CustomVersion = "no label value!"
	if v, ok := New(owner, "system", nil, 0, 1).Labels[appsv1beta1.LabelCustomVersion]; ok {
		t.Errorf("custom version %q is a label", v)
	}
}

func TestRefresh(t *testing.T) {
	tests := map[string]struct {
		existing *appsv1.ControllerRevision
		version  string
		number   int64
		differs  bool
	}{
		"nothing is new":                              {recordedAs("a", 3), "", 3, false},
		"a rollback gives it the newest number":       {recordedAs("a", 3), "", 5, true},
		"a custom version is labelled":                {recordedAs("a", 3), "v2", 3, true},
		"an emptied custom version stays":             {recordedAs("a", 3, version("v1")), "", 3, false},
		"one without an owner gets one":               {recordedAs("a", 3, orphaned), "", 3, true},
		"hashes of another algorithm are written new": {recordedAs("a", 3, func(r *appsv1.ControllerRevision) { r.Annotations[appsv1beta1.AnnotationHash] = "old" }), "", 3, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := tc.existing.DeepCopy()
			owner := logOwner
			owner.CustomVersion = tc.version
			next, differs := Refresh(tc.existing, owner, tc.number)
			if differs != tc.differs || differs == cmp.Equal(before, next) {
				t.Errorf("differs: %t\n%s", differs, cmp.Diff(before, next))
			}
			if diff := cmp.Diff(before, tc.existing); diff != "" {
				t.Errorf("the argument changed:\n%s", diff)
			}
			if next.Revision != tc.number || !metav1.IsControlledBy(next, &metav1.ObjectMeta{UID: owner.UID}) {
				t.Errorf("number %d, owners %v", next.Revision, next.OwnerReferences)
			}
		})
	}
}

func TestRestore(t *testing.T) {
	object := specFromYAML(t, `
metadata: {name: log, uid: u, labels: {team: a}, annotations: {note: text, kruise.io/sidecarset-hash: current, kruise.io/sidecarset-hash-without-image: current}}
spec: {selector: {matchLabels: {app: web}}, containers: [{name: new, image: new}], customVersion: v2}
status: {matchedPods: 3, latestRevision: log-b}
`)
	data := `{"spec":{"$patch":"replace","containers":[{"name":"container1","image":"test-image","future":1}],"imagePullSecrets":null,"initContainers":null}}`
	hash, bare, err := Hashes(specFromYAML(t, `containers: [{name: container1, image: test-image, future: 1}]`))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		annotations map[string]string
		hash, bare  string
	}{
		"hashes are those of the revision":          {recordedAs("log-a", 1).Annotations, "h", "hw"},
		"hashes that are not recorded are computed": {nil, hash, bare},
	} {
		t.Run(name, func(t *testing.T) {
			r := recordedAs("log-a", 1)
			r.Data.Raw, r.Annotations = []byte(data), tc.annotations
			got, err := Restore(object, r)
			if err != nil {
				t.Fatalf("Restore: %v", err)
			}
			want := map[string]any{
				"metadata": map[string]any{
					"name": "log", "uid": "u", "labels": map[string]any{"team": "a"},
					"annotations": map[string]any{"note": "text", "kruise.io/sidecarset-hash": tc.hash, "kruise.io/sidecarset-hash-without-image": tc.bare},
				},
				"spec":   map[string]any{"containers": []any{map[string]any{"name": "container1", "image": "test-image", "future": int64(1)}}},
				"status": map[string]any{"latestRevision": "log-a"},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("restored (-want +got):\n%s", diff)
			}
		})
	}
	for _, bad := range []string{``, `[]`, `{"spec":null}`} {
		r := recordedAs("log-x", 1)
		r.Data.Raw = []byte(bad)
		if _, err := Restore(object, r); err == nil {
			t.Errorf("data %q is restored", bad)
		}
	}
}

// A revision that becomes the current one again is current since then, whatever time was
// recorded before.
func TestCurrentSince(t *testing.T) {
	created, back := time.Unix(1000, 0), time.Unix(5000, 0)
	owner := logOwner
	owner.Annotations = map[string]string{appsv1beta1.AnnotationCurrentSince: "2099-01-01T00:00:00Z"} // a user wrote it
	owner.Now = back
	first := New(owner, "system", []byte(`{}`), 0, 1)
	first.CreationTimestamp = metav1.NewTime(created)
	if got := CurrentSince(first); !got.Equal(created) {
		t.Errorf("a new revision is current since %s, want %s", got, created)
	}
	same, _ := Refresh(first, owner, 1)
	if got := CurrentSince(same); !got.Equal(created) {
		t.Errorf("a revision that stayed is current since %s, want %s", got, created)
	}
	again, _ := Refresh(first, owner, 3)
	if got := CurrentSince(again); !got.Equal(back) {
		t.Errorf("a revision that came back is current since %s, want %s", got, back)
	}
}
