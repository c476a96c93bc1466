package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience is how long a probe waits for its answer. On a machine at work an
// answer may take long; what is to get none is refused, not left waiting.
const patience = 10 * time.Second

// probe makes all connections at once and prints what they came to, in order.
func probe(what []string) error {
	results := make([]string, len(what))
	var wg sync.WaitGroup
	for i, w := range what {
		wg.Go(func() { results[i] = fate(w) })
	}
	wg.Wait()
	fmt.Println(strings.Join(results, "\n"))
	return nil
}

// load makes the connections again and again, one after the other, until its standard input ends, and then prints what they
// came to, each with its number. It says when it has begun. It leaves pauses: a client that uses up its ports would meet
// connections that the kernel has not forgotten yet, which is another test's matter.
func load(what []string) error {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	fmt.Println("begun")
	fates := map[string]int{}
	for n := 0; ; n++ {
		select {
		case <-ended:
			for _, f := range slices.Sorted(maps.Keys(fates)) {
				fmt.Println(fates[f], f)
			}
			return nil
		case <-time.After(10 * time.Millisecond):
			at := what[n%len(what)]
			fates[at+" "+fate(at)]++
		}
	}
}

// witness connects at once, and again and again until it is ended, and adds a line to the file of the host's name in a directory each
// time that a connection comes to something else than the one before it. So a test learns of a pod's first connections.
func witness(dir, address string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	for last := ""; ; time.Sleep(50 * time.Millisecond) {
		is, _, _ := strings.Cut(fate("tcp:"+address), " ")
		if is == last {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, host), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(f, is); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		last = is
	}
}

// fate is the answer to a probe, or "refused", "timeout" or the error.
func fate(what string) string {
	kind, address, _ := strings.Cut(what, ":")
	var text string
	var err error
	switch kind {
	case "tcp":
		text, err = ask(address)
	case "dns", "dnstcp":
		text, err = resolve(map[string]string{"dns": "udp", "dnstcp": "tcp"}[kind], address)
	default:
		err = fmt.Errorf("unknown probe %q", what)
	}
	var timeout net.Error
	switch {
	case err == nil:
		return text
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	default:
		return err.Error()
	}
}

func ask(address string) (string, error) {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	text, err := io.ReadAll(conn)
	return strings.TrimSpace(string(text)), err
}

// resolve asks for the address of "e2e." and returns it.
func resolve(network, address string) (string, error) {
	conn, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	query := []byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 'e', '2', 'e', 0, 0, 1, 0, 1}
	if network == "tcp" {
		query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	}
	if _, err := conn.Write(query); err != nil {
		return "", err
	}
	reply := make([]byte, 1500)
	n, err := conn.Read(reply)
	if err != nil {
		return "", err
	}
	if n < 4 {
		return "", fmt.Errorf("answer of %d bytes", n)
	}
	return net.IP(reply[n-4 : n]).String(), nil
}
