package podstate_test

import (
	"encoding/json"
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

var someEntry = podstate.Entry{
	Content: "h2", Generation: 7, At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Was: podstate.WasOurs,
	Containers: map[string]podstate.Before{
		"log":  {ID: "containerd://1", Restarts: 3, Image: "log:1", Digest: "sha256:a"},
		"tail": {},
	},
}

func TestEntriesFormat(t *testing.T) {
	m := podstate.Entries{}.With("zoo", podstate.Entry{At: someEntry.At}).With("ant", someEntry).
		WithResize("bee", podstate.Resize{}).With("bee", podstate.Entry{Generation: 1, At: someEntry.At, Was: podstate.WasDown, Containers: map[string]podstate.Before{}}).
		WithResize("ant", podstate.Resize{Hash: "h", Generation: 8, At: someEntry.At, WasReady: true, Containers: []string{"log"}})
	const want = `{"v":1,"uid":"u","sets":{` +
		`"ant":{"content":"h2","generation":7,"at":"2026-01-02T03:04:05Z","was":"Ours","wasReady":true,"containers":{"log":{"id":"containerd://1","restarts":3,"image":"log:1","digest":"sha256:a"},"tail":{"id":""}}},` +
		`"bee":{"generation":1,"at":"2026-01-02T03:04:05Z","was":"Down","wasReady":false,"containers":{}},` +
		`"zoo":{"generation":0,"at":"2026-01-02T03:04:05Z","was":"Up","wasReady":true,"containers":null}},` +
		`"resizes":{"ant":{"hash":"h","generation":8,"at":"2026-01-02T03:04:05Z","wasReady":true,"containers":["log"]}}}`
	if diff := cmp.Diff(want, m.Format("u")); diff != "" {
		t.Errorf("annotation (-want +got):\n%s", diff)
	}
	got, err := podstate.EntriesOf(marked(want))
	if diff := cmp.Diff(m, got); diff != "" || err != nil {
		t.Errorf("read again (-want +got):\n%s%v", diff, err)
	}
	kept := got.Keep(func(set string) bool { return set == "bee" })
	if len(kept.Sets) != 1 || len(kept.Resizes) != 0 || len(got.Sets) != 3 || len(got.Resizes) != 1 {
		t.Errorf("kept %v of %v", kept, got)
	}
}

// formerEntry is the record that operators before content and was read and write. They ignore
// members that they do not know.
type formerEntry struct {
	Generation int64                      `json:"generation"`
	At         time.Time                  `json:"at"`
	Began      time.Time                  `json:"began,omitzero"`
	WasReady   bool                       `json:"wasReady"`
	Containers map[string]podstate.Before `json:"containers"`
}

// formerEntries is their annotation.
type formerEntries struct {
	V       int                        `json:"v"`
	UID     string                     `json:"uid"`
	Sets    map[string]formerEntry     `json:"sets"`
	Resizes map[string]podstate.Resize `json:"resizes,omitempty"`
}

// After a rollback, earlier operators go on from the record of this one.
func TestFormerOperatorsReadTheRecord(t *testing.T) {
	resize := podstate.Resize{Hash: "h", Before: "g", Generation: 8, At: someEntry.At, WasReady: true, Containers: []string{"log"}}
	for was, wasReady := range map[podstate.Was]bool{podstate.WasUp: true, podstate.WasOurs: true, podstate.WasDown: false} {
		e := someEntry
		e.Was = was
		var got formerEntries
		if err := json.Unmarshal([]byte(podstate.Entries{}.With("ant", e).WithResize("ant", resize).Format("u")), &got); err != nil {
			t.Fatal(err)
		}
		want := formerEntries{V: 1, UID: "u", Sets: map[string]formerEntry{
			"ant": {Generation: e.Generation, At: e.At, WasReady: wasReady, Containers: e.Containers},
		}, Resizes: map[string]podstate.Resize{"ant": resize}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("was %d (-want +got):\n%s", was, diff)
		}
	}
}

// After an upgrade, this operator goes on from the records of earlier ones.
func TestTheRecordsOfFormerOperatorsAreRead(t *testing.T) {
	resize := podstate.Resize{Hash: "h", Generation: 8, At: someEntry.At, Containers: []string{"log"}}
	for wasReady, was := range map[bool]podstate.Was{true: podstate.WasUp, false: podstate.WasDown} {
		text, err := json.Marshal(formerEntries{V: 1, UID: "u", Sets: map[string]formerEntry{
			"ant": {Generation: 7, At: someEntry.At, Began: someEntry.At.Add(-time.Hour), WasReady: wasReady, Containers: someEntry.Containers},
		}, Resizes: map[string]podstate.Resize{"ant": resize}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := podstate.EntriesOf(marked(string(text)))
		want := podstate.Entries{
			Sets:    map[string]podstate.Entry{"ant": {Generation: 7, At: someEntry.At, Was: was, Containers: someEntry.Containers}},
			Resizes: map[string]podstate.Resize{"ant": resize},
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("wasReady %v (-want +got):\n%s%v", wasReady, diff, err)
		}
		for _, hash := range []string{"h1", "h2"} { // the content is that of the hash record
			hashes := podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: "ant", Hash: hash, UpdateTimestamp: someEntry.At})
			if e := got.Of("ant", hashes); e == nil || e.Was != was {
				t.Errorf("of content %s it knows %+v", hash, e)
			}
		}
	}
}

// An Entry is about the content that the Pod carries, if the Pod has not been updated since.
func TestEntriesOfTheContentThatThePodCarries(t *testing.T) {
	entries := podstate.Entries{}.With("ant", someEntry)
	hashes := func(hash string, at time.Time) podstate.Hashes {
		return podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: "ant", Hash: hash, UpdateTimestamp: at})
	}
	for name, tc := range map[string]struct {
		set    string
		hashes podstate.Hashes
		want   bool
	}{
		"as it was written":                      {"ant", hashes("h2", someEntry.At), true},
		"a hash record without a time":           {"ant", hashes("h2", time.Time{}), true},
		"written once more":                      {"ant", hashes("h2", someEntry.At.Add(-time.Minute)), true},
		"OpenKruise's later write":               {"ant", hashes("h3", someEntry.At.Add(time.Second)), false},
		"OpenKruise's later write, same content": {"ant", hashes("h2", someEntry.At.Add(time.Second)), false},
		"OpenKruise's write in the same second":  {"ant", hashes("h3", someEntry.At), false},
		"a content of a clock that is late":      {"ant", hashes("h1", someEntry.At.Add(-time.Hour)), false},
		"no hash record":                         {"ant", podstate.Hashes{}, false},
		"no record":                              {"bee", hashes("h2", someEntry.At), false},
	} {
		if e := entries.Of(tc.set, tc.hashes); (e != nil) != tc.want {
			t.Errorf("%s: %+v, want one: %v", name, e, tc.want)
		}
	}
}

func TestEntriesOf(t *testing.T) {
	const at = `"at":"2026-01-02T03:04:05Z"`
	sets := func(sets string) string { return `{"v":1,"uid":"u","sets":` + sets + `}` }
	entry := func(members string) string { return sets(`{"a":{` + members + `}}`) }
	many := func(n int, value string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"%d":%s`, i, value)
		}
		return "{" + strings.TrimPrefix(b.String(), ",") + "}"
	}
	whole := `{"generation":1,` + at + `}`
	tests := map[string]struct {
		value string
		sets  int // how many are read, -1 for a value that cannot be read
	}{
		"an entry":                       {entry(`"generation":1,` + at + `,"wasReady":true,"containers":{"c":{"id":"x"}}`), 1},
		"members that are not known":     {`{"v":1,"more":[1,{}],"uid":"u","sets":{"a":{"generation":1,"more":null,` + at + `,"containers":{"c":{"id":"x","more":{}}}}}}`, 1},
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
		"a state from before":            {entry(`"generation":1,"was":"Ours",` + at), 1},
		"a state that is not known":      {entry(`"generation":1,"was":"Gone",` + at), -1},
		"a state as a number":            {entry(`"generation":1,"was":1,` + at), -1},
		"a content as a number":          {entry(`"generation":1,"content":1,` + at), -1},
		"a time before 1970":             {entry(`"generation":1,"at":"1969-12-31T23:59:59Z"`), -1},
		"a time after 9999":              {entry(`"generation":1,"at":"9999-12-31T23:59:59-01:00"`), -1},
		"an entry that is null":          {sets(`{"a":null}`), -1},
		"wasReady as a text":             {entry(`"generation":1,"wasReady":"true",` + at), -1},
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
			m, err := podstate.EntriesOf(marked(tc.value))
			if (err != nil) != (tc.sets < 0) || len(m.Sets) != max(tc.sets, 0) {
				t.Errorf("%d SidecarSets, %v; want %d", len(m.Sets), err, tc.sets)
			}
		})
	}
	if m, err := podstate.EntriesOf(&corev1.Pod{}); err != nil || len(m.Sets) != 0 {
		t.Errorf("a Pod without a record: %v, %v", m.Sets, err)
	}
}

// A value that is read and written again reads as the same, and costs no more than the
// bounds allow.
func FuzzEntries(f *testing.F) {
	f.Add(podstate.Entries{}.With("a", someEntry).WithResize("a", podstate.Resize{Hash: "h", At: someEntry.At, Containers: []string{"log", ""}}).Format("u"))
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
		m, err := podstate.EntriesOf(pod)
		if err != nil {
			if len(m.Sets) > 0 {
				t.Errorf("an error and %v", m.Sets)
			}
			return
		}
		entries := len(m.Sets) + len(m.Resizes)
		for _, e := range m.Sets {
			entries += len(e.Containers)
			podstate.NewEntry(podstate.Write{Pod: pod, Was: e.Was, Previous: &e, Changes: []podstate.Change{{Container: "log"}}, Now: sentAt})
		}
		for _, z := range m.Resizes {
			entries += len(z.Containers)
		}
		if len(value) > 64<<10 || entries > 256 {
			t.Errorf("%d entries are read of %d bytes", entries, len(value))
		}
		text := m.Format("u")
		again, err := podstate.EntriesOf(marked(text))
		if len(text) > 64<<10 { // escapes can be longer than what they stand for
			return
		}
		if diff := cmp.Diff(m, again, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("read again (-first +second):\n%s%v", diff, err)
		}
	})
}
