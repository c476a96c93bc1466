package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "podtool:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if command := os.Getenv("CNI_COMMAND"); command != "" {
		if filepath.Base(os.Args[0]) == recorder {
			return record(command, os.Stdin)
		}
		config, done, err := called(command, os.Stdin)
		if done || err != nil {
			return err
		}
		return cni(command, config)
	}
	if len(args) == 0 {
		return wait()
	}
	switch args[0] {
	case "proxy":
		return proxy(slices.Contains(args, "transparent"))
	case "serve":
		for _, a := range args[1:] {
			if at, ok := strings.CutPrefix(a, "http:"); ok {
				if err := web(at); err != nil {
					return err
				}
				continue
			}
			port, err := strconv.ParseUint(a, 10, 16)
			if err != nil {
				return err
			}
			if err := serve("app", uint16(port), false); err != nil {
				return err
			}
		}
		return wait()
	case "peer":
		return peerAgent(args[1:])
	case "ztunnel":
		return ztunnel(args[1], slices.Contains(args, "forward"))
	case "load":
		return load(args[1:])
	case "probe":
		return probe(args[1:])
	case "witness":
		return witness(args[1], args[2])
	case "cat":
		text, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(text)
		return err
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}

// wait waits for the signal to end, and reaps what becomes its child meanwhile.
func wait() error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return nil
		}
		for {
			var status syscall.WaitStatus
			if pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}
