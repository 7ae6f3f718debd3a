package podstate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

func marked(value string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Annotations: map[string]string{appsv1beta1.AnnotationInPlace: value}}}
}

var someRecord = podstate.InPlaceRecord{
	Hash: "h2", Generation: 7, At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), StateBefore: podstate.WasNotReadyByUpdate,
	Containers: map[string]podstate.Before{
		"log":  {ID: "containerd://1", Restarts: 3, Image: "log:1", Digest: "sha256:a"},
		"tail": {},
	},
}

func TestEntriesFormat(t *testing.T) {
	m := podstate.InPlaceRecords{}.With("zoo", podstate.InPlaceRecord{At: someRecord.At}).With("ant", someRecord).
		WithResize("bee", podstate.Resize{}).With("bee", podstate.InPlaceRecord{Generation: 1, At: someRecord.At, StateBefore: podstate.WasNotReady, Containers: map[string]podstate.Before{}}).
		WithResize("ant", podstate.Resize{Hash: "h", Generation: 8, At: someRecord.At, WasReady: true, Containers: []string{"log"}})
	const want = `{"v":1,"uid":"u","sets":{` +
		`"ant":{"hash":"h2","generation":7,"at":"2026-01-02T03:04:05Z","stateBefore":"NotReadyByUpdate","containers":{"log":{"id":"containerd://1","restarts":3,"image":"log:1","digest":"sha256:a"},"tail":{"id":""}}},` +
		`"bee":{"generation":1,"at":"2026-01-02T03:04:05Z","stateBefore":"NotReady","containers":{}},` +
		`"zoo":{"generation":0,"at":"2026-01-02T03:04:05Z","stateBefore":"Ready","containers":null}},` +
		`"resizes":{"ant":{"hash":"h","generation":8,"at":"2026-01-02T03:04:05Z","wasReady":true,"containers":["log"]}}}`
	if diff := cmp.Diff(want, m.Format("u")); diff != "" {
		t.Errorf("annotation (-want +got):\n%s", diff)
	}
	got, err := podstate.InPlaceRecordsOf(marked(want))
	if diff := cmp.Diff(m, got); diff != "" || err != nil {
		t.Errorf("read again (-want +got):\n%s%v", diff, err)
	}
	kept := got.Keep(func(set string) bool { return set == "bee" })
	if len(kept.Sets) != 1 || len(kept.Resizes) != 0 || len(got.Sets) != 3 || len(got.Resizes) != 1 {
		t.Errorf("kept %v of %v", kept, got)
	}
}

func TestInPlaceRecordsOf(t *testing.T) {
	const at = `"at":"2026-01-02T03:04:05Z"`
	sets := func(sets string) string { return `{"v":1,"uid":"u","sets":` + sets + `}` }
	entry := func(members string) string { return sets(`{"a":{"stateBefore":"Ready",` + members + `}}`) }
	many := func(n int, value string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"%d":%s`, i, value)
		}
		return "{" + strings.TrimPrefix(b.String(), ",") + "}"
	}
	whole := `{"generation":1,"stateBefore":"Ready",` + at + `}`
	tests := map[string]struct {
		value string
		sets  int // how many are read, -1 for a value that cannot be read
	}{
		"an entry":                       {entry(`"generation":1,` + at + `,"stateBefore":"Ready","containers":{"c":{"id":"x"}}`), 1},
		"members that are not known":     {`{"v":1,"more":[1,{}],"uid":"u","sets":{"a":{"generation":1,"stateBefore":"Ready","more":null,` + at + `,"containers":{"c":{"id":"x","more":{}}}}}}`, 1},
		"no SidecarSet":                  {sets(`{}`), 0},
		"blanks":                         {" { \"v\" : 1 , \"uid\" : \"u\" , \"sets\" : { } } ", 0},
		"the record of another Pod":      {`{"v":1,"uid":"other","sets":{"a":` + whole + `}}`, 0},
		"without a UID":                  {`{"v":1,"sets":{"a":` + whole + `}}`, 0},
		"another version":                {`{"v":2,"uid":"u","sets":{}}`, -1},
		"another version, as a text":     {`{"v":"1","uid":"u","sets":{}}`, -1},
		"no version":                     {`{"uid":"u","sets":{}}`, -1},
		"empty":                          {``, -1},
		"no object":                      {`[]`, -1},
		"null":                           {`null`, -1},
		"half of it":                     {entry(whole)[:40], -1},
		"a UID that is a number":         {`{"v":1,"uid":1,"sets":{}}`, -1},
		"SidecarSets in a list":          {sets(`[]`), -1},
		"an entry that is a text":        {sets(`{"a":"b"}`), -1},
		"an entry without a time":        {entry(`"generation":1`), -1},
		"a time that is none":            {entry(`"generation":1,"at":"yesterday"`), -1},
		"a time that is a number":        {entry(`"generation":1,"at":5`), -1},
		"a negative generation":          {entry(`"generation":-1,` + at), -1},
		"a generation with a fraction":   {entry(`"generation":1.5,` + at), -1},
		"a generation beyond all bounds": {entry(`"generation":9223372036854775808,` + at), -1},
		"a state from before":            {entry(`"generation":1,"stateBefore":"NotReadyByUpdate",` + at), 1},
		"a state that is not known":      {entry(`"generation":1,"stateBefore":"Gone",` + at), -1},
		"a state as a number":            {entry(`"generation":1,"stateBefore":1,` + at), -1},
		"a hash as a number":             {entry(`"generation":1,"stateBefore":"Ready","hash":1,` + at), -1},
		"a time before 1970":             {entry(`"generation":1,"at":"1969-12-31T23:59:59Z"`), -1},
		"a time after 9999":              {entry(`"generation":1,"at":"9999-12-31T23:59:59-01:00"`), -1},
		"an entry that is null":          {sets(`{"a":null}`), -1},
		"no state before":                {sets(`{"a":{"generation":1,` + at + `}}`), -1},
		"containers in a list":           {entry(`"generation":1,` + at + `,"containers":[]`), -1},
		"an ID that is a number":         {entry(`"generation":1,` + at + `,"containers":{"c":{"id":1}}`), -1},
		"a resize without a time":        {`{"v":1,"uid":"u","sets":{},"resizes":{"a":{"hash":"h"}}}`, -1},
		"256 SidecarSets":                {sets(many(256, whole)), 256},
		"257 SidecarSets":                {sets(many(257, whole)), -1},
		"255 containers":                 {entry(`"generation":1,` + at + `,"containers":` + many(255, `{}`)), 1},
		"256 containers":                 {entry(`"generation":1,` + at + `,"containers":` + many(256, `{}`)), -1},
		"more than 64 KiB":               {`{"v":1,"uid":"u","sets":{},"more":"` + strings.Repeat("x", 64<<10) + `"}`, -1},
		"deeply nested":                  {`{"v":1,"uid":"u","sets":{},"more":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, -1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := podstate.InPlaceRecordsOf(marked(tc.value))
			if (err != nil) != (tc.sets < 0) || len(m.Sets) != max(tc.sets, 0) {
				t.Errorf("%d SidecarSets, %v; want %d", len(m.Sets), err, tc.sets)
			}
		})
	}
	if m, err := podstate.InPlaceRecordsOf(&corev1.Pod{}); err != nil || len(m.Sets) != 0 {
		t.Errorf("a Pod without a record: %v, %v", m.Sets, err)
	}
}

// A value that is read and written again reads as the same, and costs no more than the
// bounds allow.
func FuzzInPlaceRecords(f *testing.F) {
	f.Add(podstate.InPlaceRecords{}.With("a", someRecord).WithResize("a", podstate.Resize{Hash: "h", At: someRecord.At, Containers: []string{"log", ""}}).Format("u"))
	f.Add(`{"v":1,"uid":"u","sets":{"\u0061":{"generation":1,"at":"2026-01-02T03:04:05+01:00","containers":{"\ud800":{"id":"\n"}}}}}`)
	f.Add(`{"v":1,"uid":"u","sets":{"a":{"generation":9223372036854775807,"at":"9999-01-02T03:04:05Z","containers":{"log":{"restarts":2147483647}}}}}`)
	f.Fuzz(func(t *testing.T, value string) {
		pod := marked(value)
		pod.Annotations[appsv1beta1.AnnotationInjectedList] = "a"
		pod.Spec.Containers = []corev1.Container{{Name: "log"}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "log", ContainerID: "x", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		r := podstate.FromPod(pod)
		if next := r.ChangesAt(1000); next != 0 && next <= 1000 {
			t.Errorf("record %+v changes at %d", r, next)
		}
		m, err := podstate.InPlaceRecordsOf(pod)
		if err != nil {
			if len(m.Sets) > 0 {
				t.Errorf("an error and %v", m.Sets)
			}
			return
		}
		entries := len(m.Sets) + len(m.Resizes)
		for _, e := range m.Sets {
			entries += len(e.Containers)
			podstate.NewInPlaceRecord(podstate.Write{Pod: pod, StateBefore: e.StateBefore, Previous: &e, Changes: []podstate.Change{{Container: "log"}}, Now: sentAt})
		}
		for _, z := range m.Resizes {
			entries += len(z.Containers)
		}
		if len(value) > 64<<10 || entries > 256 {
			t.Errorf("%d entries are read of %d bytes", entries, len(value))
		}
		text := m.Format("u")
		again, err := podstate.InPlaceRecordsOf(marked(text))
		if len(text) > 64<<10 { // escapes can be longer than what they stand for
			return
		}
		if diff := cmp.Diff(m, again, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("read again (-first +second):\n%s%v", diff, err)
		}
	})
}
