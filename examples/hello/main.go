// Command hello is a service and its client, for trying a mesh with no image but meshcni's: "hello serve" answers HTTP on port 8080
// with the address of who asks, and "hello get URL" prints an answer.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "serve" {
		server := &http.Server{Addr: ":8080", ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(hello)}
		return server.ListenAndServe()
	}
	if len(args) == 2 && args[0] == "get" {
		client := http.Client{Timeout: 10 * time.Second}
		answer, err := client.Get(args[1])
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		_, err = io.Copy(os.Stdout, answer.Body)
		return err
	}
	return fmt.Errorf("usage: hello serve, or hello get URL")
}

func hello(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprintln(w, "hello,", r.RemoteAddr) }
