package inplace_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

func marked(value string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Annotations: map[string]string{appsv1beta1.AnnotationInPlace: value}}}
}

var someMark = inplace.Mark{
	Generation: 7, At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), WasReady: true,
	Containers: map[string]inplace.Before{
		"log":   {ID: "containerd://1", Image: "log:1", Digest: "sha256:a"},
		"proxy": {ID: "containerd://2", Since: []string{"proxy:1", `pro"xy:2`}},
		"tail":  {},
	},
}

func TestMarksFormat(t *testing.T) {
	m := inplace.Marks{}.With("zoo", inplace.Mark{At: someMark.At}).With("ant", someMark).With("bee", someMark).With("bee", inplace.Mark{Generation: 1, At: someMark.At})
	const want = `{"v":1,"uid":"u","sets":{` +
		`"ant":{"generation":7,"at":"2026-01-02T03:04:05Z","wasReady":true,"containers":{"log":{"id":"containerd://1","image":"log:1","digest":"sha256:a"},` +
		`"proxy":{"id":"containerd://2","since":["proxy:1","pro\"xy:2"]},"tail":{"id":""}}},` +
		`"bee":{"generation":1,"at":"2026-01-02T03:04:05Z","wasReady":false,"containers":{}},` +
		`"zoo":{"generation":0,"at":"2026-01-02T03:04:05Z","wasReady":false,"containers":{}}}}`
	if diff := cmp.Diff(want, m.Format("u")); diff != "" {
		t.Errorf("annotation (-want +got):\n%s", diff)
	}
	got, err := inplace.MarksOf(marked(want))
	if diff := cmp.Diff(m.Sets, got.Sets); diff != "" || err != nil {
		t.Errorf("read again (-want +got):\n%s%v", diff, err)
	}
	kept := got.Keep(func(set string) bool { return set != "bee" })
	if _, ok := kept.Sets["bee"]; ok || len(kept.Sets) != 2 || len(got.Sets) != 3 {
		t.Errorf("kept %v of %v", kept.Sets, got.Sets)
	}
}

func TestMarksOf(t *testing.T) {
	const at = `"at":"2026-01-02T03:04:05Z"`
	sets := func(sets string) string { return `{"v":1,"uid":"u","sets":` + sets + `}` }
	mark := func(members string) string { return sets(`{"a":{` + members + `}}`) }
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
		"a mark":                         {mark(`"generation":1,` + at + `,"wasReady":true,"containers":{"c":{"id":"x"}}`), 1},
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
		"half of it":                     {mark(whole)[:40], -1},
		"a UID that is a number":         {`{"v":1,"uid":1,"sets":{}}`, -1},
		"without SidecarSets":            {`{"v":1,"uid":"u"}`, -1},
		"SidecarSets in a list":          {sets(`[]`), -1},
		"a mark that is a text":          {sets(`{"a":"b"}`), -1},
		"a mark without a time":          {mark(`"generation":1`), -1},
		"a time that is none":            {mark(`"generation":1,"at":"yesterday"`), -1},
		"a time that is a number":        {mark(`"generation":1,"at":5`), -1},
		"a negative generation":          {mark(`"generation":-1,` + at), -1},
		"a generation with a fraction":   {mark(`"generation":1.5,` + at), -1},
		"a generation beyond all bounds": {mark(`"generation":9223372036854775808,` + at), -1},
		"wasReady as a text":             {mark(`"generation":1,"wasReady":"true",` + at), -1},
		"containers in a list":           {mark(`"generation":1,` + at + `,"containers":[]`), -1},
		"a container that is null":       {mark(`"generation":1,` + at + `,"containers":{"c":null}`), -1},
		"an ID that is a number":         {mark(`"generation":1,` + at + `,"containers":{"c":{"id":1}}`), -1},
		"images that are no texts":       {mark(`"generation":1,` + at + `,"containers":{"c":{"since":[1]}}`), -1},
		"many images":                    {mark(`"generation":1,` + at + `,"containers":{"c":{"since":[` + strings.Repeat(`"",`, 8) + `""]}}`), -1},
		"one SidecarSet twice":           {sets(`{"a":` + whole + `,"a":` + whole + `}`), -1},
		"one container twice":            {mark(`"generation":1,` + at + `,"containers":{"c":{},"c":{}}`), -1},
		"256 SidecarSets":                {sets(many(256, whole)), 256},
		"257 SidecarSets":                {sets(many(257, whole)), -1},
		"255 containers":                 {mark(`"generation":1,` + at + `,"containers":` + many(255, `{}`)), 1},
		"256 containers":                 {mark(`"generation":1,` + at + `,"containers":` + many(256, `{}`)), -1},
		"more than 64 KiB":               {`{"v":1,"uid":"u","sets":{},"more":"` + strings.Repeat("x", 64<<10) + `"}`, -1},
		"deeply nested":                  {`{"v":1,"uid":"u","sets":{},"more":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, -1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := inplace.MarksOf(marked(tc.value))
			if (err != nil) != (tc.sets < 0) || len(m.Sets) != max(tc.sets, 0) {
				t.Errorf("%d SidecarSets, %v; want %d", len(m.Sets), err, tc.sets)
			}
		})
	}
	if m, err := inplace.MarksOf(&corev1.Pod{}); err != nil || len(m.Sets) != 0 {
		t.Errorf("a Pod without a record: %v, %v", m.Sets, err)
	}
}

// A value that is read and written again reads as the same, and costs no more than the
// bounds allow.
func FuzzMarks(f *testing.F) {
	for _, values := range []string{`"1","2"`, `"1","1e900000000"`, `"garbage","100m"`, `"","1111111111111111111e900000000"`} {
		f.Add(`{"v":1,"uid":"u","sets":{},"resizes":{"a":{"at":"2026-01-02T03:04:05Z","of":{"log":{"requests.cpu":[` + values + `]}}}}}`)
	}
	live := corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}}
	f.Add(inplace.Marks{}.With("a", someMark).Format("u"))
	f.Add(`{"v":1,"uid":"u","sets":{"\u0061":{"generation":1,"at":"2026-01-02T03:04:05+01:00","containers":{"\ud800":{"id":"\n"}}}}}`)
	f.Fuzz(func(t *testing.T, value string) {
		pod := marked(value)
		pod.Annotations[appsv1beta1.AnnotationInjectedList] = "a"
		pod.Spec.Containers = []corev1.Container{{Name: "log", Resources: live}}
		if r := podstate.FromPod(pod); !r.Active {
			t.Errorf("record %+v", r)
		}
		m, err := inplace.MarksOf(pod)
		if err != nil {
			if len(m.Sets) > 0 {
				t.Errorf("an error and %v", m.Sets)
			}
			return
		}
		entries := 0
		for _, mark := range m.Sets {
			entries += 1 + len(mark.Containers)
			inplace.Observe(pod, mark)
		}
		for _, sizes := range m.Resizes {
			entries += 1 + len(sizes.Values)
			sizes.Observe(pod)
			plan, reason := inplace.PlanResize(pod, nil, sizes.Values)
			if _, err := plan.Patch("1"); err != nil || reason != "" && len(plan.Containers) > 0 {
				t.Errorf("plan %+v, %q, %v", plan, reason, err)
			}
		}
		if len(value) > 64<<10 || entries > 256 {
			t.Errorf("%d entries are read of %d bytes", entries, len(value))
		}
		again, err := inplace.MarksOf(marked(m.Format("u")))
		if len(m.Format("u")) > 64<<10 { // escapes can be longer than what they stand for
			return
		}
		if diff := cmp.Diff(m.Sets, again.Sets, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("read again (-first +second):\n%s%v", diff, err)
		}
	})
}
