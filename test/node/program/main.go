// Command program is what the Pods of the node tier run, and their sandboxes. It waits for
// SIGTERM. The environment of an image says what else it does, so that images that share
// their only layer behave differently.
//
//	PORT      where it listens; without it, it does not listen
//	DEAF      if set, SIGTERM does not end it
//	EXIT      its exit code after SIGTERM; 0 without it
//	HANGING   if set, GET /started fails
//	UNREADY   if set, GET /ready fails until POST /ready
//	CRASHING  if set, it exits with code 1 at once
//	MEMORY    how many MiB it uses
//
// It serves GET /version and GET /signals (how often it got SIGTERM), and
// POST /exit?code=N, too.
package main

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
)

var memory []byte

func main() {
	if os.Getenv("CRASHING") != "" {
		os.Exit(1)
	}
	if size, _ := strconv.Atoi(os.Getenv("MEMORY")); size > 0 {
		memory = make([]byte, size<<20)
		for i := range memory {
			memory[i] = byte(i) // the kernel allocates a page only when it is written
		}
	}
	var signals atomic.Int32
	arrived := make(chan os.Signal, 1)
	signal.Notify(arrived, syscall.SIGTERM)
	if port := os.Getenv("PORT"); port != "" {
		go serve(port, &signals)
	}
	for range arrived {
		signals.Add(1)
		if os.Getenv("DEAF") == "" {
			code, _ := strconv.Atoi(os.Getenv("EXIT"))
			os.Exit(code)
		}
	}
}

func serve(port string, signals *atomic.Int32) {
	var started, ready atomic.Bool
	started.Store(os.Getenv("HANGING") == "")
	ready.Store(os.Getenv("UNREADY") == "")
	http.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, os.Getenv("VERSION")) })
	http.HandleFunc("GET /signals", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, signals.Load()) })
	http.HandleFunc("GET /started", says(&started))
	http.HandleFunc("GET /ready", says(&ready))
	http.HandleFunc("POST /ready", func(http.ResponseWriter, *http.Request) { ready.Store(true) })
	http.HandleFunc("POST /exit", func(_ http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(cmp.Or(r.FormValue("code"), "0"))
		os.Exit(code)
	})
	fmt.Println(http.ListenAndServe(":"+port, nil))
	os.Exit(1)
}

func says(value *atomic.Bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if !value.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
}
