package jsonread_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/jsonread"
)

// read reads the names, the first raw value of raw, and whether yes is "true".
func read(document string) (names []string, raw string, yes bool, err error) {
	var r jsonread.Reader
	r.Reset([]byte(document))
	r.Object([]string{"names", "raw", "yes", "stop"}, func(name string) {
		switch name {
		case "names":
			r.Array(func() { names = append(names, r.Text()) })
		case "raw":
			start := r.Offset()
			r.Skip()
			raw = string(r.Since(start))
		case "yes":
			yes = r.TextIs("true")
		case "stop":
			r.Stop()
		}
	})
	r.End()
	return names, raw, yes, r.Err()
}

func TestReaderReadsMembersAndRefusesMalformedDocuments(t *testing.T) {
	tests := map[string]struct {
		document string
		names    []string
		raw      string
		yes      bool
		err      string
	}{
		"members in any order":          {document: `{"yes":"true","x":[{}],"names":["a","b"]}`, names: []string{"a", "b"}, yes: true},
		"escaped names and values":      {document: `{"\u006eames":["\u0061\n"],"y\u0065s":"tru\u0065"}`, names: []string{"a\n"}, yes: true},
		"case counts":                   {document: `{"Names":["a"],"YES":"true"}`},
		"a value as its bytes":          {document: `{"raw" : {"a" : 1.0e1 } }`, raw: `{"a" : 1.0e1 }`},
		"null is the zero value":        {document: `{"names":null,"raw":null,"yes":null}`},
		"null in a list":                {document: `{"names":["a",null]}`, names: []string{"a", ""}},
		"a name twice":                  {document: `{"yes":"","yes":""}`, err: "yes is present twice"},
		"a name twice, once escaped":    {document: `{"yes":"","\u0079es":""}`, err: "yes is present twice"},
		"an unknown name twice":         {document: `{"x":1,"x":2}`},
		"another type":                  {document: `{"names":["a",[7]]}`, names: []string{"a", ""}, err: "names.1 must be a string, not an array"},
		"another type for an object":    {document: `["a"]`, err: "the document must be an object, not an array"},
		"the syntax of skipped values":  {document: `{"x":[tru]}`, err: "invalid"},
		"more behind the document":      {document: `{} {}`, err: "more data follows"},
		"nested beyond all measure":     {document: `{"x":` + strings.Repeat("[", 20_000), err: "depth"},
		"nothing is read behind a stop": {document: `{"yes":"true","stop":!!!`, yes: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			names, raw, yes, err := read(tc.document)
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			if diff := cmp.Diff(tc.names, names); diff != "" || raw != tc.raw || yes != tc.yes {
				t.Errorf("raw %q, yes %v, names (-want +got):\n%s", raw, yes, diff)
			}
		})
	}
}

func TestTextMapRefusesAKeyTwice(t *testing.T) {
	var r jsonread.Reader
	r.Reset([]byte(`{"a":"1","b":null}`))
	if diff := cmp.Diff(map[string]string{"a": "1", "b": ""}, r.TextMap()); diff != "" || r.Err() != nil {
		t.Errorf("%v, (-want +got):\n%s", r.Err(), diff)
	}
	r.Reset([]byte(`{"a":"1","a":"2"}`))
	if r.TextMap(); r.Err() == nil || r.Going() {
		t.Error("a key that is present twice is read")
	}
}
