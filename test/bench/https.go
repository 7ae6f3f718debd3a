package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// HTTPSCase is one admission that is sent over HTTPS.
type HTTPSCase struct {
	Size PodSize
	Kind Kind
}

// HTTPSCases are all cases over HTTPS; the target is about the first one.
var HTTPSCases = []HTTPSCase{{Small, Matched}, {Small, None}, {Big, Matched}}

// HTTPSRound is the result of one site in one round.
type HTTPSRound struct {
	CPU  time.Duration // of the site's process, per request
	Rate float64       // requests per second
}

// HTTPSResults are the rounds of each case by site, and the size of the operator's answer.
type HTTPSResults struct {
	Rounds  map[HTTPSCase]map[Site][]HTTPSRound
	Answers map[HTTPSCase]int
}

// CPU is the median over rounds.
func (r HTTPSResults) CPU(c HTTPSCase, site Site) time.Duration { return median(r.cpu(c, site)) }

// Rate is the median over rounds.
func (r HTTPSResults) Rate(c HTTPSCase, site Site) float64 { return median(r.rate(c, site)) }

// CPURatio is the CPU time of a divided by that of b: the median of the ratio within a round.
func (r HTTPSResults) CPURatio(c HTTPSCase, a, b Site) float64 {
	return medianRatio(r.cpu(c, a), r.cpu(c, b))
}

// RateRatio is the same for requests per second.
func (r HTTPSResults) RateRatio(c HTTPSCase, a, b Site) float64 {
	return medianRatio(r.rate(c, a), r.rate(c, b))
}

func (r HTTPSResults) cpu(c HTTPSCase, site Site) []time.Duration {
	return column(r.Rounds[c][site], func(r HTTPSRound) time.Duration { return r.CPU })
}

func (r HTTPSResults) rate(c HTTPSCase, site Site) []float64 {
	return column(r.Rounds[c][site], func(r HTTPSRound) float64 { return r.Rate })
}

func column[T any](rounds []HTTPSRound, of func(HTTPSRound) T) []T {
	values := make([]T, len(rounds))
	for i, round := range rounds {
		values[i] = of(round)
	}
	return values
}

// CompareHTTPS measures every case at every site. Each site is a process of its own, which command
// starts. This process is the client, and uses one processor, too. In each round, all sites take
// their turn at one case before the next case begins.
func CompareHTTPS(ctx context.Context, rounds int, window time.Duration, command func(Site) *exec.Cmd) (results HTTPSResults, err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	results = HTTPSResults{Rounds: map[HTTPSCase]map[Site][]HTTPSRound{}, Answers: map[HTTPSCase]int{}}
	running := map[Site]*siteProcess{}
	defer func() {
		for _, p := range running {
			err = errors.Join(err, p.stop())
		}
	}()
	for _, site := range Sites {
		if running[site], err = startSite(command(site)); err != nil {
			return results, fmt.Errorf("starting %s: %w", site, err)
		}
	}
	loads := map[HTTPSCase]load{}
	for _, c := range HTTPSCases {
		body := Body(SidecarSets(httpsSets), c.Size, c.Kind)
		size, err := running[SiteOurs].client.exchange(ctx, load{body: body}, io.Discard)
		if err != nil {
			return results, fmt.Errorf("asking for one answer: %w", err)
		}
		results.Answers[c], loads[c] = int(size), load{body, int(size)}
		results.Rounds[c] = map[Site][]HTTPSRound{}
	}
	for round := range rounds + 1 {
		for _, c := range HTTPSCases {
			for _, site := range Sites {
				measured, err := running[site].measure(ctx, loads[c], window)
				if err != nil {
					return results, fmt.Errorf("sending to %s: %w", site, err)
				}
				if round > 0 { // the first one warms up
					results.Rounds[c][site] = append(results.Rounds[c][site], measured)
				}
			}
		}
	}
	return results, nil
}

// siteProcess is a running site, and the connections to it.
type siteProcess struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	client  *client
}

func startSite(command *exec.Cmd) (*siteProcess, error) {
	p := &siteProcess{command: command}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	var greeting Greeting
	line, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &greeting)
	}
	if err == nil {
		p.client, err = newClient(greeting)
	}
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// stop ends the process by closing its input.
func (p *siteProcess) stop() error {
	if p.client != nil {
		p.client.close()
	}
	return errors.Join(p.in.Close(), p.command.Wait())
}

func (p *siteProcess) measure(ctx context.Context, what load, window time.Duration) (HTTPSRound, error) {
	before, err := p.cpu()
	if err != nil {
		return HTTPSRound{}, err
	}
	start := time.Now()
	requests, err := p.client.send(ctx, what, start.Add(window))
	if err != nil {
		return HTTPSRound{}, err
	}
	rate := float64(requests) / time.Since(start).Seconds()
	after, err := p.cpu()
	return HTTPSRound{CPU: (after - before) / time.Duration(max(requests, 1)), Rate: rate}, err
}

// cpu asks the process for its CPU time.
func (p *siteProcess) cpu() (time.Duration, error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return 0, err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	nanoseconds, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return time.Duration(nanoseconds), err
}
