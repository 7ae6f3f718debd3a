package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"testing"
)

// Over HTTPS, each site gives the answer that its handler gives in memory. The static site
// answers with the requested number of bytes.
func TestHTTPSSitesGiveTheAnswersOfTheirHandlers(t *testing.T) {
	sets := SidecarSets(httpsSets)
	for _, site := range Sites {
		t.Run(string(site), func(t *testing.T) {
			c := visit(t, site)
			for _, what := range HTTPSCases {
				body := Body(sets, what.Size, what.Kind)
				want := bytes.Clone(staticAnswer[:4321])
				switch site {
				case SiteOurs:
					want = NewCall(NewOurs(sets), body).Do()
				case SiteComparator:
					want = NewCall(NewComparator(sets), body).Do()
				}
				for range 2 { // the second request uses the same connection
					var got bytes.Buffer
					if _, err := c.exchange(t.Context(), load{body, 4321}, &got); err != nil {
						t.Fatal(err)
					}
					// The comparator's operations come in the order of a map.
					if got.Len() != len(want) || site != SiteComparator && !bytes.Equal(want, got.Bytes()) {
						t.Errorf("%s, %s: %d bytes, want %d that are the same", what.Size.Name, what.Kind, got.Len(), len(want))
					}
				}
			}
		})
	}
}

// visit runs a site in this process until the test ends.
func visit(t *testing.T, site Site) *client {
	t.Helper()
	in, stop := io.Pipe()
	out, greeting := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), site, in, greeting) }()
	t.Cleanup(func() {
		if err := stop.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	lines := bufio.NewReader(out)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var where Greeting
	if err := json.Unmarshal(line, &where); err != nil {
		t.Fatal(err)
	}
	c, err := newClient(where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	if _, err := stop.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if line, err = lines.ReadBytes('\n'); err != nil || len(bytes.TrimSpace(line)) == 0 {
		t.Errorf("its CPU time is %q, %v", line, err)
	}
	return c
}
