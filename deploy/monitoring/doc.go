// Package monitoring holds the tests of the dashboard and of the alert rules beside it: that they are valid, and that
// they ask for nothing but what the agent really exports.
package monitoring
