package podstate_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/podstate"
)

var written = time.Date(2026, 11, 20, 21, 58, 28, 999, time.UTC)

func TestHashesRenderTheReferenceForm(t *testing.T) {
	entry := podstate.HashRecord{UpdateTimestamp: written, Hash: "w444", SidecarSetName: "hot", SidecarList: []string{"mesh", "tail"}, ControllerRevision: "hot-abc"}
	tests := map[string]struct {
		value   string
		entries []podstate.HashRecord
		want    string
	}{
		"members are in OpenKruise's order": {
			"", []podstate.HashRecord{entry},
			`{"hot":{"updateTimestamp":"2026-11-20T21:58:28Z","hash":"w444","sidecarSetName":"hot","sidecarList":["mesh","tail"],"controllerRevision":"hot-abc"}}`,
		},
		"zero time and nil list are null, an empty revision is left out": {
			"", []podstate.HashRecord{{Hash: "h", SidecarSetName: "a"}},
			`{"a":{"updateTimestamp":null,"hash":"h","sidecarSetName":"a","sidecarList":null}}`,
		},
		"an empty list stays a list": {
			"", []podstate.HashRecord{{Hash: "h", SidecarSetName: "a", SidecarList: []string{}}},
			`{"a":{"updateTimestamp":null,"hash":"h","sidecarSetName":"a","sidecarList":[]}}`,
		},
		"time is written in UTC": {
			"", []podstate.HashRecord{{UpdateTimestamp: written.In(time.FixedZone("", 3600)), SidecarSetName: "a"}},
			`{"a":{"updateTimestamp":"2026-11-20T21:58:28Z","hash":"","sidecarSetName":"a","sidecarList":null}}`,
		},
		"names are sorted and other entries stay as they were written": {
			`{"zoo":{"hash":"z","invented":[1, 2]},"bee":{"sidecarSetName":"other","hash":"b"}}`,
			[]podstate.HashRecord{{Hash: "h", SidecarSetName: "dog"}, {Hash: "h", SidecarSetName: "ant"}},
			`{"ant":{"updateTimestamp":null,"hash":"h","sidecarSetName":"ant","sidecarList":null},` +
				`"bee":{"sidecarSetName":"other","hash":"b"},` +
				`"dog":{"updateTimestamp":null,"hash":"h","sidecarSetName":"dog","sidecarList":null},` +
				`"zoo":{"hash":"z","invented":[1, 2]}}`,
		},
		"an own entry is replaced": {
			`{"a":{"hash":"old","invented":1}}`, []podstate.HashRecord{{Hash: "new", SidecarSetName: "a"}},
			`{"a":{"updateTimestamp":null,"hash":"new","sidecarSetName":"a","sidecarList":null}}`,
		},
		"legacy entries are upgraded under their own names": {
			`{"b":"h2","a":"h1"}`, nil,
			`{"a":{"updateTimestamp":null,"hash":"h1","sidecarSetName":"a","sidecarList":null},` +
				`"b":{"updateTimestamp":null,"hash":"h2","sidecarSetName":"b","sidecarList":null}}`,
		},
		"garbage is dropped":                            {`{"a":`, nil, `{}`},
		"a value that is no object is dropped":          {`["a"]`, nil, `{}`},
		"null is dropped":                               {`null`, nil, `{}`},
		"entries that are no entries are dropped":       {`{"a":null,"b":3,"c":[],"d":{"hash":7},"e":"h"}`, nil, `{"e":{"updateTimestamp":null,"hash":"h","sidecarSetName":"e","sidecarList":null}}`},
		"names that need quoting survive":               {`{"a\"b":{"hash":"h"}}`, nil, `{"a\"b":{"hash":"h"}}`},
		"of an entry that stands twice the last counts": {`{"a":"1","b":"2","a":{"hash":"3"},"b":null}`, nil, `{"a":{"hash":"3"}}`},
		"a hash that is null is none":                   {`{"a":{"hash":null}}`, nil, `{"a":{"hash":null}}`},
		"nested members called hash do not count":       {`{"a":{"x":{"hash":1,"y":["]}",{}]},"hash":"h\"\\"}}`, nil, `{"a":{"x":{"hash":1,"y":["]}",{}]},"hash":"h\"\\"}}`},
		"white space around the object is allowed":      {" {\"a\" : {\"hash\":\"h\"} } ", nil, `{"a":{"hash":"h"}}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := podstate.ParseHashes(tc.value).With(tc.entries...).String()
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("annotation (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHashesYieldTheSidecarsThatTheyList(t *testing.T) {
	h := podstate.ParseHashes(`{"d":{"sidecarList":["y","z"]},"a":"legacy","b":{"sidecarList":["x"]},"c":{"sidecarList":[1]},"e":{"sidecarList":null}}`)
	var got []string
	for set, sidecars := range h.Sidecars() {
		got = append(got, set+": "+strings.Join(sidecars, ","))
	}
	if diff := cmp.Diff([]string{"b: x", "d: y,z"}, got); diff != "" {
		t.Errorf("sidecars (-want +got):\n%s", diff)
	}
	if h.Empty() || !(podstate.Hashes{}).Empty() {
		t.Error("Empty is wrong")
	}
}

func TestHashesAreImmutable(t *testing.T) {
	h := podstate.ParseHashes(`{"a":{"hash":"h1"},"b":{"hash":"h2"}}`)
	before := h.String()
	h.With(podstate.HashRecord{SidecarSetName: "a", Hash: "other"})
	kept := h.Keep(func(name string) bool { return name == "b" })
	if got := h.String(); got != before {
		t.Errorf("With or Keep changed their receiver: %s", got)
	}
	if got, want := kept.String(), `{"b":{"hash":"h2"}}`; got != want {
		t.Errorf("Keep = %s, want %s", got, want)
	}
}

func TestInjectedList(t *testing.T) {
	tests := map[string]struct {
		value string
		want  []string
		join  string
	}{
		"sorted names":                {"log-agent,mesh", []string{"log-agent", "mesh"}, "log-agent,mesh"},
		"order and duplicates repair": {"mesh,log,mesh", []string{"log", "mesh"}, "log,mesh"},
		"empties and spaces go":       {",mesh, ,log ,", []string{"log", "mesh"}, "log,mesh"},
		"empty":                       {"", nil, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := podstate.ParseInjectedList(tc.value)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if join := podstate.JoinInjectedList(got); join != tc.join {
				t.Errorf("joined = %q, want %q", join, tc.join)
			}
		})
	}
}

func FuzzParseHashes(f *testing.F) {
	for _, seed := range []string{``, `{}`, `{"a":"h"}`, `{"a":{"hash":"h"}}`, `{"a":{"hash":1}}`, `null`, `{"a":{"hash":null,"hash":"x"}}`, `{"a":{"updateTimestamp":"2026-11-20T21:58:28Z","hash":"w","sidecarSetName":"a","sidecarList":["m","t"],"controllerRevision":"c"},"b":{"updateTimestamp":null,"hash":"w","sidecarSetName":"b","sidecarList":[]}}`, `{"a":{"hash":"h"},"a":"x"}`, "{\"\xff\":\"h\"}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		once := podstate.ParseHashes(value).String()
		if again := podstate.ParseHashes(once).String(); again != once {
			t.Errorf("parsing %q gives %s, parsing that gives %s", value, once, again)
		}
	})
}

// recordsIn decodes the annotation that Hashes render.
func recordsIn(t *testing.T, annotation string) map[string]json.RawMessage {
	t.Helper()
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(annotation), &all); err != nil {
		t.Fatalf("%v: %s", err, annotation)
	}
	return all
}

func TestTexts(t *testing.T) {
	tests := map[string]struct {
		value string
		want  map[string]string
	}{
		"choices that we write":            {`{"log":"Current","mesh":"mesh-6d5857687f"}`, map[string]string{"log": podstate.ChoseCurrent, "mesh": "mesh-6d5857687f"}},
		"working containers that we write": {`{"log":"log-2","mesh":"mesh-1"}`, map[string]string{"log": "log-2", "mesh": "mesh-1"}},
		"nothing":                          {"", nil},
		"null":                             {"null", nil},
		"garbage":                          {"{", nil},
		"a word":                           {"x", nil},
		"a list":                           {`["log"]`, nil},
		"a map of numbers":                 {`{"log":1}`, nil},
		"a map of something else":          {`{"log":"log-2","mesh":1}`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := podstate.ParseTexts(tc.value)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ParseTexts (-want +got):\n%s", diff)
			}
			if text := podstate.FormatTexts(got); len(tc.want) > 0 && text != tc.value {
				t.Errorf("FormatTexts = %s, want %s", text, tc.value)
			}
		})
	}
}
