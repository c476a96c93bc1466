// Package monitoring tests the dashboard and the alert rules in deploy/monitoring: that they are valid, and that they ask for nothing but
// what the agent really exports.
package monitoring
