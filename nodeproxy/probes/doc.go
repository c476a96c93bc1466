// Package probes keeps the exemption of the host's own probes.
package probes
